//! What was observed of a module or of a kernel: facts, never opinions. Rules turn them into
//! verdicts (`rules::verdict`, `rules::validity`), so changing a rule never needs a rerun.

use serde::{Deserialize, Serialize};

/// A short text: up to 24 bytes of it lie in place. Measurements are many and hold some dozen of them.
pub use compact_str::CompactString as Word;

/// The language a kernel is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// `@triton.jit` kernels; run under Triton's interpreter where there is no GPU.
    Triton,
    /// `__global__` kernels built with nvcc.
    Cuda,
}

/// How a candidate can fail by its own fault. `WrongValue` is not here: whether values are wrong
/// is a verdict over [`Trial`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The answer holds no code block, or more text than a candidate may have.
    NoCode,
    /// The source does not parse or does not compile.
    CompileError,
    /// Importing the file raised.
    ImportError,
    /// `ModelNew` is absent or is not an `nn.Module`.
    MissingEntry,
    /// Constructing `ModelNew` raised.
    InitError,
    /// `load_state_dict` from the reference failed.
    StateMismatch,
    /// `forward` raised.
    RuntimeError,
    /// A fault of the device: illegal address, launch failure.
    IllegalAccess,
    /// The deadline passed; the process group was killed.
    Timeout,
    /// The candidate asked for more memory than it may have.
    OutOfMemory,
    /// An output has another shape, or there is another number of outputs.
    WrongShape,
    /// An output has another dtype, device or layout.
    WrongDtype,
    /// An input was changed that the reference leaves alone.
    InputsChanged,
    /// A static or dynamic rule against work that is not the candidate's own.
    Impure,
    /// A time that the hardware cannot reach, or clocks that disagree.
    SuspiciousTiming,
    /// The candidate tried to leave its sandbox, or died without an answer.
    SandboxViolation,
}

/// A candidate's own failure, with what was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The class of the failure.
    pub kind: FailureKind,
    /// One to a few lines of evidence: scrubbed, at most [`Failure::DETAIL_MAX`] bytes.
    pub detail: String,
}

impl FailureKind {
    /// The coarse word for it: `rejected` for work that is not the candidate's own or that leaves
    /// its sandbox, `incorrect` for a wrong answer, the rest as they are called.
    pub fn outcome(self) -> &'static str {
        match self {
            Self::NoCode | Self::CompileError | Self::ImportError | Self::MissingEntry => {
                "compile_error"
            }
            Self::InitError
            | Self::StateMismatch
            | Self::RuntimeError
            | Self::IllegalAccess
            | Self::OutOfMemory => "runtime_error",
            Self::Timeout => "timeout",
            Self::WrongShape | Self::WrongDtype | Self::InputsChanged => "incorrect",
            Self::Impure | Self::SuspiciousTiming | Self::SandboxViolation => "rejected",
        }
    }
}

impl Failure {
    /// Longest evidence that is kept, in bytes.
    pub const DETAIL_MAX: usize = 2048;

    /// A failure with its evidence cut to [`Failure::DETAIL_MAX`] at a character boundary.
    pub fn new(kind: FailureKind, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if detail.len() > Self::DETAIL_MAX {
            let mut end = Self::DETAIL_MAX;
            while !detail.is_char_boundary(end) {
                end -= 1;
            }
            detail.truncate(end);
        }
        Self { kind, detail }
    }
}

/// How a task itself can be at fault; no candidate is blamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskFault {
    /// The reference raised or passed its deadline.
    ReferenceFailed,
    /// Two runs of the reference on the same inputs differ.
    Nondeterministic,
    /// Outputs are not tensors, are constant, or are not finite.
    Degenerate,
}

/// Everything observed of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// What happened.
    pub execution: Execution,
    /// Isolation layers that were active: `pid-ns`, `net-ns`, `landlock`, `rlimits`, …
    pub layers: Vec<Word>,
    /// Where it ran: `cpu-interpreter` or the device's name.
    pub device: Word,
    /// Whether the reference multiplies matrices or convolves in float32, so that TF32 is a fair
    /// way to do it on a GPU.
    pub products: bool,
    /// What a CUDA candidate was compiled with; nothing for Triton.
    pub headers: Option<Headers>,
    /// Wall time of the whole measurement in milliseconds.
    pub wall_ms: u64,
}

/// What `torch/extension.h` was when a CUDA candidate was compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Headers {
    /// The judge's small header set.
    Fast,
    /// Torch's own.
    Full,
}

/// What happened when a kernel was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Execution {
    /// The candidate failed by its own fault.
    Failed(Failure),
    /// The task is at fault.
    TaskAtFault(TaskFault, String),
    /// It cannot run here: a CUDA candidate on a machine without a GPU. Built, never executed.
    NoDevice,
    /// Both ran on every trial.
    Ran {
        /// One entry per trial, in order.
        trials: Vec<Trial>,
        /// Kernels of the candidate's own that were launched in one checked call.
        launches: u32,
        /// Times, where they were taken.
        timing: Timing,
    },
}

/// One comparison on fresh inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Seed of the inputs.
    pub seed: u64,
    /// What was changed beside the seed: `given`, `plain`, or a change of the inputs such as `x30` or
    /// `+2.5`, with `+noise` where the parameters were changed too.
    pub varied: Word,
    /// One entry per output tensor, then per input tensor that the reference itself changes.
    pub outputs: Vec<OutputStats>,
}

/// Sufficient statistics of one output: any flat or scaled tolerance can be decided from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputStats {
    /// Torch's name of the dtype, without `torch.`.
    pub dtype: Word,
    /// Number of elements compared.
    pub elements: u64,
    /// Elements where exactly one side is NaN or infinite, or infinities differ in sign.
    pub nonfinite_mismatches: u64,
    /// Elements of the reference that are NaN or infinite.
    pub nonfinite_reference: u64,
    /// Integer and boolean dtypes: elements that differ. 0 for floats.
    pub exact_mismatches: u64,
    /// Largest finite magnitude of the reference.
    pub max_reference: f64,
    /// Largest distance of a finite reference element from the reference's mean.
    pub spread_reference: f64,
    /// Corners `(|reference|, |error|)` of the upper left hull over all finite elements: an element
    /// violates `error <= atol + rtol * |reference|` exactly if one of these does, for any
    /// non-negative `atol` and `rtol`.
    pub hull: Vec<(f64, f64)>,
}

/// Times of one kernel and its reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Timing {
    /// Not asked for, or not possible where it ran.
    NotTaken,
    /// Both were timed. Apart, as it is larger than all else that an event holds.
    Taken(Box<Times>),
}

/// Device times in nanoseconds, one per call, each with a cold L2 cache and fresh inputs. Candidate
/// and reference (PyTorch eager) take turns of `calls` calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Calls in a turn.
    pub calls: u32,
    /// Called from Python, as a user would.
    pub eager: Sides,
    /// The work alone: of short tasks replays of CUDA graphs where both sides can be captured, else
    /// calls whose launches are ahead of the device. None where a side waits for the device in its calls.
    pub graph: Option<Sides>,
}

/// Times of both sides in the order in which they were taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sides {
    /// The candidate's times.
    pub candidate_ns: Vec<u64>,
    /// The reference's times.
    pub reference_ns: Vec<u64>,
}

/// Everything observed of one proposed module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModuleReport {
    /// Read from the source alone.
    pub source: SourceReport,
    /// What happened when it was run; `NotRun` if the source already disqualifies it.
    pub run: ModuleRun,
}

/// What the source of a module shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceReport {
    /// No code block in the answer.
    NoCode,
    /// It does not parse; the text says where.
    DoesNotParse(String),
    /// It parses.
    Parsed {
        /// Required definitions that are absent, of `Model`, `get_inputs`, `get_init_inputs`.
        missing: Vec<String>,
        /// Full names of the APIs that are really called, aliases and imports resolved; sorted.
        apis: Vec<String>,
        /// Things a module must not do (`open`, `exec`, other imports), as `rule: evidence`.
        forbidden: Vec<String>,
    },
}

/// What happened when a module was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ModuleRun {
    /// It was not run.
    NotRun,
    /// It raised, at the named step (`import`, `init`, `inputs`, `forward`).
    Failed {
        /// Where.
        step: String,
        /// The last lines of the error.
        detail: String,
    },
    /// It passed its deadline or its memory limit.
    Exceeded(String),
    /// It ran on all trials.
    Ran {
        /// One entry per set of random inputs.
        trials: Vec<ModuleTrial>,
        /// Whether the output changed with the inputs (`None`: no tensor inputs).
        depends_on_inputs: Option<bool>,
        /// Parameters whose perturbation changes nothing.
        dead_parameters: Vec<String>,
    },
}

/// One run of a module on one set of random inputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModuleTrial {
    /// Seed of the inputs.
    pub seed: u64,
    /// Elements over all outputs.
    pub elements: u64,
    /// NaN or infinite elements.
    pub nonfinite: u64,
    /// Largest finite magnitude.
    pub max_abs: f64,
    /// Largest distance from the mean over all outputs: 0 for constants.
    pub spread: f64,
    /// A second call on the same inputs gave the same bits.
    pub repeatable: bool,
}
