//! Who may ask.

use tempfile::TempDir;

use crate::cli::ends_with;
use crate::served::{Served, command, job};

const TOKEN: &str = "a token of the tests";

#[test]
fn others_are_answered_only_with_a_token() {
    let folder = TempDir::new().unwrap();
    let open = command(folder.path(), &["--listen", "0.0.0.0"]).output().unwrap();
    ends_with(&open, 2, "--token-file");
    let file = folder.path().join("token");
    let arguments = ["--listen", "0.0.0.0", "--token-file", file.to_str().unwrap()];
    let refused = || command(folder.path(), &arguments).output().unwrap();
    ends_with(&refused(), 2, "cannot read the token file");
    std::fs::write(&file, "short\n").unwrap();
    ends_with(&refused(), 2, "at least 16 bytes");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();

    let mut served = Served::start(folder.path(), &arguments);
    assert_eq!(served.get("/v1/judge").refusal(), (401, "unauthorized", ""));
    assert_eq!(served.post("/v1/judge", &job("honest_leaky")).refusal().0, 401);
    assert_eq!(served.get("/health").status, 200, "whether it lives is no secret");
    served.token = Some("another token of the tests".into());
    assert_eq!(served.get("/v1/judge").refusal(), (401, "unauthorized", ""));
    served.token = Some(TOKEN.into());
    let elsewhere = [("Host", "judge.example.org")];
    assert_eq!(served.ask("GET", "/v1/judge", &elsewhere, b"").status, 200);
    let id = served.submit(&job("hack_fallback"));
    assert_eq!(served.over(&id)["outcome"], "rejected");
}

#[test]
fn a_page_that_points_its_own_name_here_is_not_answered() {
    let folder = TempDir::new().unwrap();
    let served = Served::start(folder.path(), &[]);
    let elsewhere = [("Host", "evil.example.org:8790")];
    let refused = served.ask("GET", "/v1/judge", &elsewhere, b"");
    assert_eq!(refused.refusal(), (403, "other_host", ""));
    let local = [("Host", "localhost:8790")];
    assert_eq!(served.ask("GET", "/v1/judge", &local, b"").status, 200);
    let port = served.address.rsplit_once(':').unwrap().1;
    let taken = command(folder.path(), &["--port", port]).output().unwrap();
    ends_with(&taken, 3, "cannot listen on 127.0.0.1");
}
