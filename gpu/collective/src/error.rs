//! What can go wrong between ranks.

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// What was seen of a rank that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its process has ended; the words say how, if that is known.
    Ended(Option<String>),
    /// It said nothing until the deadline.
    Silent,
    /// It or another of those that were waited for together said nothing until the deadline.
    OneSilent,
    /// The link to it does not work, or carried nonsense.
    Broken(String),
    /// Something of its own went wrong where the others count on it.
    Failed(String),
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Loss::Ended(None) => f.write_str("has ended"),
            Loss::Ended(Some(how)) => write!(f, "has ended ({how})"),
            Loss::Silent => f.write_str("was silent until the deadline"),
            Loss::OneSilent => f.write_str("or another rank was silent until the deadline"),
            Loss::Broken(why) => write!(f, "cannot be reached ({why})"),
            Loss::Failed(why) => write!(f, "has failed ({why})"),
        }
    }
}

/// A named failure. All but [`Error::Start`] and [`Error::NoNccl`] end the ranks' work together.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ranks did not come together.
    #[error("the ranks could not be started: {0}")]
    Start(String),
    /// A rank has ended, or was silent for longer than the deadline.
    #[error("rank {rank} is lost: it {problem}")]
    Lost {
        /// Which.
        rank: usize,
        /// What was seen of it.
        problem: Loss,
    },
    /// A function of NCCL or of the CUDA runtime is in none of the libraries of this process.
    #[error("{0} is not there: ranks on GPUs need a libtorch with CUDA, which brings libnccl.so.2")]
    NoNccl(&'static str),
    /// NCCL or the CUDA runtime refused a call.
    #[error("{call} failed: {problem}")]
    Nccl {
        /// The call.
        call: &'static str,
        /// The library's word.
        problem: String,
    },
}
