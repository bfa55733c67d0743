//! Attacks, their prey, and which layers are there to stop them.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use events::outcome::ModuleRun;
use keck::{Config, Isolation, Judge, ValidateJob};
use serde_json::json;
use tempfile::TempDir;

/// An attack of `attacks.py` or `system.py` and the sets of layers each of which must stop it alone.
pub struct Try {
    pub attack: &'static str,
    pub stops: &'static [&'static [&'static str]],
}

const fn t(attack: &'static str, stops: &'static [&'static [&'static str]]) -> Try {
    Try { attack, stops }
}

const MOUNT: &[&str] = &["mount-ns"];
const PID: &[&str] = &["pid-ns"];
/// Without a new view of `/proc` the old one still shows everybody.
const PID_MOUNT: &[&str] = &["pid-ns", "mount-ns"];
const NET: &[&str] = &["net-ns"];
const IPC: &[&str] = &["ipc-ns"];
const USER: &[&str] = &["user-ns"];
const UID: &[&str] = &["own-uid"];
const CAPS: &[&str] = &["no-capabilities"];
const LIMITS: &[&str] = &["rlimits"];
/// The number of root's processes is never limited.
const LIMITS_UID: &[&str] = &["rlimits", "own-uid"];
const LANDLOCK: &[&str] = &["landlock"];
const FILTER: &[&str] = &["seccomp"];

pub const TRIES: &[Try] = &[
    t("tcp", &[NET, FILTER, LANDLOCK]),
    t("udp", &[NET, FILTER]),
    t("unix_path", &[MOUNT, UID, FILTER]),
    t("unix_abstract", &[NET, FILTER, LANDLOCK]),
    t("netlink", &[FILTER]),
    t("packet", &[FILTER, UID, CAPS, USER]),
    t("write", &[MOUNT, UID, LANDLOCK]),
    t("write_system", &[MOUNT, LANDLOCK]),
    t("read_secret", &[MOUNT, UID, LANDLOCK]),
    t("read_through_proc", &[PID_MOUNT, UID, CAPS, LANDLOCK]),
    t("signal_all", &[PID, UID, LANDLOCK]),
    t("signal_parent", &[PID, UID, LANDLOCK]),
    t("pidfd_signal", &[PID, UID, LANDLOCK]),
    t("ptrace", &[PID, UID, CAPS, LANDLOCK, FILTER]),
    t("read_memory", &[PID, UID, CAPS, LANDLOCK, FILTER]),
    t("pidfd_getfd", &[PID, UID, CAPS, LANDLOCK, FILTER]),
    t("proc_mem", &[PID_MOUNT, UID, CAPS, LANDLOCK]),
    t("kill_bystander", &[PID, UID, LANDLOCK]),
    t("fork", &[FILTER]),
    t("forget_parent", &[FILTER]),
    t("mount", &[UID, CAPS, USER, LANDLOCK, FILTER]),
    t("keys", &[FILTER]),
    t("io_uring", &[FILTER]),
    t("bpf", &[UID, CAPS, FILTER]),
    t("perf", &[FILTER]),
    t("userfault", &[FILTER]),
    t("execute", &[FILTER]),
    t("execute_memory", &[FILTER]),
    t("fork_bomb", &[FILTER, LIMITS_UID]),
    t("thread_bomb", &[LIMITS_UID]),
    t("huge_private", &[LIMITS]),
    t("huge_shared", &[LIMITS]),
    t("huge_memory_file", &[LIMITS]),
    t("big_file", &[LIMITS]),
    t("fill_folder", &[MOUNT]),
    t("descriptors", &[LIMITS]),
    t("raise_limits", &[UID, CAPS, USER]),
    t("become_root", &[UID, USER]),
    t("host_name", &[UID, CAPS, USER]),
    t("sysv_memory", &[IPC, UID]),
    t("clone_user", &[FILTER]),
    t("clone3_user", &[FILTER]),
    // These two last: the one must still have a while to go when the worker is ended, the other
    // leaves a process that is nobody.
    t("outlive", &[PID, FILTER]),
    t("unshare_user", &[FILTER]),
];

/// A judge with small limits, so that passing them costs little.
pub fn judge(isolation: Isolation) -> Judge {
    let config = Config {
        isolation,
        workers: 2,
        memory_mib: 1024,
        file_mib: 64,
        tmp_mib: 16,
        ..Config::default()
    };
    Judge::new(config).unwrap()
}

static COUNT: AtomicI32 = AtomicI32::new(1);

/// What the attacks are after.
pub struct Prey {
    folders: Vec<TempDir>,
    open: TempDir,
    bystander: Child,
    tcp: TcpListener,
    udp: UdpSocket,
    _listeners: [UnixListener; 2],
    name: String,
    shm: (i32, i32),
}

impl Prey {
    pub fn new() -> Self {
        let home = std::env::var_os("HOME").map_or_else(|| "/tmp".into(), PathBuf::from);
        let places = [std::env::temp_dir(), "/var/tmp".into(), "/dev/shm".into(), home];
        let folders: Vec<TempDir> =
            places.iter().map(|place| TempDir::new_in(place).unwrap()).collect();
        let name = folders[0].path().file_name().unwrap().to_string_lossy().into_owned();
        let first = folders[0].path();
        std::fs::write(first.join("secret"), format!("secret of {name}")).unwrap();
        mode(&first.join("secret"), 0o600);
        let path = UnixListener::bind(first.join("unix")).unwrap();
        let hidden = SocketAddr::from_abstract_name(&name).unwrap();
        let hidden = UnixListener::bind_addr(&hidden).unwrap();
        let open = TempDir::new_in("/var/tmp").unwrap();
        mode(open.path(), 0o755);
        let number = COUNT.fetch_add(1, Ordering::Relaxed) << 24;
        let key = i32::try_from(std::process::id()).unwrap() | 0x4000_0000 | number;
        // SAFETY: makes a segment of a page; it is removed on drop.
        let id = unsafe { libc::shmget(key, 4096, libc::IPC_CREAT | 0o600) };
        assert!(id >= 0, "no shared memory");
        Self {
            open,
            bystander: Command::new("sleep").arg("600").spawn().unwrap(),
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            _listeners: [path, hidden],
            name,
            shm: (key, id),
            folders,
        }
    }

    /// What only who reads the prey's file knows.
    pub fn secret(&self) -> String {
        format!("secret of {}", self.name)
    }

    /// A folder that every user can look into.
    pub fn open_folder(&self) -> &Path {
        self.open.path()
    }

    fn world(&self) -> serde_json::Value {
        json!({
            "folder": self.folders[0].path(),
            "folders": self.folders.iter().map(TempDir::path).collect::<Vec<_>>(),
            "bystander": self.bystander.id(),
            "tcp": self.tcp.local_addr().unwrap().port(),
            "udp": self.udp.local_addr().unwrap().port(),
            "abstract": self.name,
            "shm": self.shm.0,
            "scratch": Config::default().scratch,
        })
    }

    fn holds(&self, file: &str) -> bool {
        self.folders.iter().any(|folder| folder.path().join(file).exists())
    }
}

impl Drop for Prey {
    fn drop(&mut self) {
        let _ = self.bystander.kill();
        let _ = self.bystander.wait();
        // SAFETY: removes the segment that was made for this test.
        unsafe { libc::shmctl(self.shm.1, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// Runs attacks in one worker; `done`, `stopped` or `absent` (not in this kernel) for each. What
/// can be seen from outside is believed rather than what the attack says.
pub fn run(judge: &Judge, prey: &Prey, attacks: &[&str]) -> BTreeMap<String, String> {
    let read = |name| std::fs::read_to_string(manifest().join("tests/hostile").join(name)).unwrap();
    let text = format!("{}\n{}", read("attacks.py"), read("system.py"));
    let names = serde_json::to_string(attacks).unwrap();
    let source = format!("WORLD = {}\n{text}\nraise SystemExit(attempt({names}))\n", prey.world());
    let said = said(judge, &source);
    println!("{:?}: {said}", judge.layers());
    let line = said.lines().next().and_then(|line| line.strip_prefix("SystemExit: ")).unwrap();
    let mut found: BTreeMap<String, String> = line
        .split(';')
        .map(|part| part.split_once('=').unwrap())
        .map(|(name, got)| (name.to_owned(), got.to_owned()))
        .collect();
    assert_eq!(found.len(), attacks.len(), "{said}");
    if found.contains_key("outlive") {
        // The worker has been ended; whoever is left needs a while to show it.
        std::thread::sleep(Duration::from_secs(3));
    }
    for (attack, mark) in [("write", "mark"), ("outlive", "outlived")] {
        if let Some(got) = found.get_mut(attack) {
            *got = if prey.holds(mark) { "done" } else { "stopped" }.to_owned();
        }
    }
    found
}

/// The last words of a module whose import raises.
pub fn said(judge: &Judge, source: &str) -> String {
    let job = ValidateJob { source: source.to_owned(), seed: 7, trials: 1 };
    match judge.validate(&job).unwrap() {
        ModuleRun::Failed { detail, .. } => detail,
        other => panic!("{other:?}"),
    }
}

pub fn root() -> bool {
    nix::unistd::getuid().is_root()
}

/// CAP_SYS_RESOURCE.
pub fn may_raise_limits() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    u64::from_str_radix(bits, 16).unwrap() >> 24 & 1 == 1
}

pub fn manifest() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").unwrap().into()
}

pub fn mode(path: &Path, bits: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits)).unwrap();
}

/// Whether a process is there and is no zombie.
pub fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

pub fn kill(pid: i32) {
    // SAFETY: a signal to a process that this test started.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

pub fn until(what: &str, mut there: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !there() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// All Rust files below a folder.
pub fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}
