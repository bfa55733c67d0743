//! The socket in a run's folder.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const NAME: &str = "attach.sock";
const KEY: &str = "attach.key";

/// A folder whose files have short names: the path of a socket has at most 107 bytes.
struct Folder {
    /// Keeps the short name alive.
    _open: File,
    short: PathBuf,
}

impl Folder {
    fn open(dir: &Path) -> io::Result<Self> {
        let open = File::open(dir)?;
        let short = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        Ok(Self { _open: open, short })
    }
}

/// Listens in `run_dir`. Only this user can connect: the socket is made in a folder that is closed to
/// others, and is moved out when its own mode is set. One that a killed daemon left is replaced.
pub fn listen(run_dir: &Path) -> io::Result<UnixListener> {
    let private = run_dir.join(format!("{NAME}.new"));
    let _ = fs::remove_dir_all(&private);
    DirBuilder::new().mode(0o700).create(&private)?;
    let listener = UnixListener::bind(Folder::open(&private)?.short.join(NAME))?;
    fs::set_permissions(private.join(NAME), Permissions::from_mode(0o600))?;
    fs::rename(private.join(NAME), run_dir.join(NAME))?;
    fs::remove_dir(&private)?;
    Ok(listener)
}

/// Makes what tells an operator's command from an actor that is called like one, for this user's eyes.
pub fn make_key(run_dir: &Path) -> io::Result<String> {
    let mut random = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let key = format!("{:032x}", u128::from_ne_bytes(random));
    let path = run_dir.join(KEY);
    let _ = fs::remove_file(&path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(key.as_bytes())?;
    Ok(key)
}

/// The key of the daemon of the run in `run_dir`, if it has made one.
pub fn key(run_dir: &Path) -> Option<String> {
    fs::read_to_string(run_dir.join(KEY)).ok()
}

/// Connects to the daemon of the run in `run_dir`.
pub fn connect(run_dir: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(Folder::open(run_dir)?.short.join(NAME))
}

/// Removes the socket and the key.
pub fn remove(run_dir: &Path) {
    for name in [NAME, KEY] {
        let _ = fs::remove_file(run_dir.join(name));
    }
}
