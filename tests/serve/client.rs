//! The Python client against the real service.

use std::process::Command;

use kernelzero::host::HostConfig;
use tempfile::TempDir;

use crate::cli::{root, said};
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
    let output = Command::new(HostConfig::default().python().unwrap())
        .arg(root().join("tests/serve/client.py"))
        .arg(format!("http://{}", served.address))
        .arg(folder.path())
        .env("PYTHONPATH", root().join("bin/client"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "all is well");
}
