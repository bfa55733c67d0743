//! Everything that can go wrong in the engine, each with what to do about it.

use std::path::PathBuf;

/// The engine's result.
pub type Result<T> = std::result::Result<T, Error>;

/// A named failure. [`Error::kind`] is the stable word that callers branch on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder of a model is absent.
    #[error("{path} is missing: {fix}", path = path.display())]
    Missing {
        /// What was looked for.
        path: PathBuf,
        /// What to do.
        fix: &'static str,
    },
    /// Reading or writing a file failed.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// A file holds something other than the JSON it should.
    #[error("{path} is not the JSON expected: {source}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why the parser stopped.
        source: serde_json::Error,
    },
    /// `config.json` asks for something the engine lacks or contradicts itself.
    #[error("{path}: `{key}` {problem}", path = path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The key at fault.
        key: String,
        /// What is wrong and what would be accepted.
        problem: String,
    },
    /// A safetensors file cannot be parsed.
    #[error("{path} is not a sound safetensors file ({problem}): copy it again", path = path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The parser's word.
        problem: String,
    },
    /// Tensors of the architecture are in none of the files.
    #[error("{path} lacks {names}: the weights do not belong to this config.json", path = path.display())]
    MissingTensor {
        /// The folder or file.
        path: PathBuf,
        /// The tensors' Hugging Face names.
        names: String,
    },
    /// Tensors that the architecture has no place for.
    #[error("{path} holds {names}, unknown to this architecture: check `architectures` in config.json", path = path.display())]
    UnexpectedTensor {
        /// The folder or file.
        path: PathBuf,
        /// The tensors.
        names: String,
    },
    /// Tensors of other shapes than config.json asks for.
    #[error("{path}: {shapes}: the weights do not belong to this config.json", path = path.display())]
    Shape {
        /// The folder or file.
        path: PathBuf,
        /// Each tensor with the shape found and the one wanted.
        shapes: String,
    },
    /// A GGUF file cannot be read.
    #[error("{path} {problem}: copy it again", path = path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor stored in a type that is not known.
    #[error("{path}: `{name}` is {found}; known are {known}: convert the file", path = path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type found.
        found: String,
        /// The types that would do.
        known: &'static str,
    },
    /// Weights with NaN or infinity.
    #[error("{path}: `{name}` holds NaN or infinite values: go back to an older checkpoint", path = path.display())]
    WeightsNotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// The tokenizer is unusable or does not fit the model.
    #[error("{path}: {problem}", path = path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The chat template is absent or fails to render.
    #[error("chat template of {path}: {problem}", path = path.display())]
    ChatTemplate {
        /// The model's folder.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A prompt leaves no room for an answer.
    #[error("the prompt has {tokens} tokens and the context ends at {context}: shorten it")]
    PromptTooLong {
        /// Tokens of the prompt after the template.
        tokens: usize,
        /// The model's context.
        context: usize,
    },
    /// A sample is longer than the memory that is left for keys and values.
    #[error(
        "a sample of {tokens} tokens does not fit: there is memory for {room}; ask for fewer new tokens, or free memory of the device"
    )]
    DoesNotFit {
        /// Positions that the longest sample may take.
        tokens: usize,
        /// Positions that there is memory for.
        room: usize,
    },
    /// The caller no longer wants the answers.
    #[error("cancelled: the answers that were not finished are lost")]
    Cancelled,
    /// A request or an option makes no sense.
    #[error("{0}")]
    Request(String),
    /// A request names a slot that holds no model, or the wrong sort of one.
    #[error("slot `{slot}` {problem}")]
    Slot {
        /// The slot's name.
        slot: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A training step produced NaN or infinity; the weights are as before it.
    #[error("{what} is {value} at step {step}: the step was refused, the weights are unchanged")]
    NotFinite {
        /// Loss, gradient norm and the like.
        what: &'static str,
        /// The value.
        value: f64,
        /// The step that was about to be taken.
        step: u64,
    },
    /// Another rank could not do its part; all ranks know and are as before.
    #[error("rank {rank}: {problem}")]
    Rank {
        /// Which.
        rank: usize,
        /// Its own error.
        problem: String,
    },
    /// The ranks no longer work together: what was under way is lost, and with it every model in
    /// memory; what was saved is not.
    #[error("{0}")]
    Ranks(#[from] collective::Error),
    /// A defect of the engine; the slot that was at work may be gone.
    #[error("the engine panicked: {0}")]
    Panic(String),
    /// Our own kernels or the driver under them failed; a fault of a kernel ends the process's use of
    /// the device.
    #[error("{0}")]
    Kernels(#[from] kernels::Error),
    /// A libtorch operation failed (out of memory included).
    #[error("libtorch: {0}")]
    Torch(#[from] tch::TchError),
}

impl Error {
    /// The word that names the failure on the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Missing { .. } => "missing",
            Error::Io { .. } => "io",
            Error::Json { .. } => "json",
            Error::Config { .. } => "config",
            Error::Safetensors { .. } => "safetensors",
            Error::Gguf { .. } => "gguf",
            Error::MissingTensor { .. } => "missing_tensor",
            Error::UnexpectedTensor { .. } => "unexpected_tensor",
            Error::Shape { .. } => "shape",
            Error::Dtype { .. } => "dtype",
            Error::WeightsNotFinite { .. } => "weights_not_finite",
            Error::Tokenizer { .. } => "tokenizer",
            Error::ChatTemplate { .. } => "chat_template",
            Error::PromptTooLong { .. } => "prompt_too_long",
            Error::DoesNotFit { .. } => "does_not_fit",
            Error::Cancelled => "cancelled",
            Error::Request(_) => "request",
            Error::Slot { .. } => "slot",
            Error::NotFinite { .. } => "not_finite",
            Error::Rank { .. } => "rank",
            Error::Ranks(collective::Error::Start(_)) => "ranks",
            Error::Ranks(collective::Error::NoNccl(_)) => "no_nccl",
            Error::Ranks(_) => "rank_lost",
            Error::Panic(_) => "panic",
            Error::Kernels(_) => "kernels",
            Error::Torch(_) => "torch",
        }
    }

    /// The ranks are out of step or gone: this process can only end.
    pub fn ends_ranks(&self) -> bool {
        matches!(self, Error::Ranks(_))
    }

    /// Wraps a system error with the file it concerns; for `map_err`.
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }
}
