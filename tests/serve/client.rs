//! The Python client against the real service.

use tempfile::TempDir;

use crate::cli::drives_client;
use crate::served::{Served, case, slow};

#[test]
fn the_python_client_does_what_it_says() {
    let folder = TempDir::new().unwrap();
    let served = Served::start(folder.path(), &["--queue", "2"]);
    for (kind, name) in [
        ("reference", "leaky_scale"),
        ("kernels", "honest_leaky"),
        ("kernels", "broken_wrong_slope"),
    ] {
        std::fs::write(folder.path().join(format!("{name}.py")), case(kind, name)).unwrap();
    }
    let slow = slow();
    std::fs::write(folder.path().join("slow.py"), slow["candidate"].as_str().unwrap()).unwrap();
    let address = format!("http://{}", served.address);
    drives_client("tests/serve/client.py", &[address.as_ref(), folder.path().as_os_str()]);
}
