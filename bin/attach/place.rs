//! The socket in a run's folder.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const NAME: &str = "attach.sock";

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

/// Connects to the daemon of the run in `run_dir`.
pub fn connect(run_dir: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(Folder::open(run_dir)?.short.join(NAME))
}

/// Removes the socket.
pub fn remove(run_dir: &Path) {
    let _ = fs::remove_file(run_dir.join(NAME));
}
