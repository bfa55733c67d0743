//! Everything that can happen. Past tense, closed, complete in itself; large data by hash.
//!
//! Variants are only ever added, at the end: the encoding numbers them. A changed payload becomes a
//! new variant or a new schema version, and the old form stays readable.

use serde::{Deserialize, Serialize};

use crate::config::Rules;
use crate::ids::{
    ApiSetId, BlobId, Digest, GroupId, JobId, KernelId, ModuleId, PolicyVersion, Role, RunId, Seq,
    StepRef,
};
use crate::intent::ActorName;
use crate::outcome::{Backend, Failure, FailureKind, Measurement, ModuleReport, TaskFault};

/// Version of the record form that this program writes.
pub const SCHEMA: u16 = 3;

/// Who appended an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Actor {
    /// Starts and ends runs, rounds and phases; pauses.
    RunControl,
    /// Draws API sets.
    Sampler,
    /// Writes modules.
    Proposer,
    /// Says whether modules are valid.
    Validator,
    /// Writes kernels.
    CoderPolicy,
    /// Applies static rules and builds kernels.
    CompileWorker,
    /// Runs, compares and times kernels.
    GpuExecutor,
    /// Scores groups and takes gradient steps.
    Trainer,
    /// Judges what is submitted to it.
    JudgeService,
    /// Attached to the running system from outside, or by its config.
    Attached(ActorName),
}

/// One event in the log with its envelope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Position: 1, 2, 3, without gaps.
    pub seq: Seq,
    /// Milliseconds since 1970, for people. No rule and no fold reads it.
    pub at_unix_ms: u64,
    /// The event that made this one necessary.
    pub cause: Option<Seq>,
    /// Who appended it.
    pub actor: Actor,
    /// Version of the record form.
    pub schema: u16,
    /// Hash of the previous record's stored bytes; all zero before the first.
    pub previous: Digest,
    /// What happened.
    pub event: Event,
}

/// An event that is about to be appended.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The event that made this one necessary.
    pub cause: Option<Seq>,
    /// Who appends it.
    pub actor: Actor,
    /// What happened.
    pub event: Event,
}

/// Why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// The model ended its answer.
    Stop,
    /// The output limit was reached.
    Length,
}

/// One answer of a model, as the log names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Seed of the sample's random stream.
    pub seed: u64,
    /// The weights that drew it.
    pub policy: PolicyVersion,
    /// A [`crate::sample::Sample`] as JSON: text, tokens, log-probs, settings.
    pub sample: BlobId,
    /// The code taken out of the answer; `None` if there is none.
    pub source: Option<BlobId>,
    /// Tokens drawn.
    pub tokens: u32,
    /// Why it ended.
    pub finish: Finish,
}

/// Stage of validation, in the order they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Parses, defines what the format asks, uses every API of its set.
    Ast,
    /// Instantiates and runs.
    Runnable,
    /// Several random inputs without NaN or Inf, and the strict checks.
    Stable,
}

/// Whether a module may be used as a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Validity {
    /// It may.
    Valid,
    /// It may not.
    Invalid {
        /// The first stage that failed.
        stage: Stage,
        /// What was wrong.
        reason: String,
    },
}

/// What the static rules and the compiler said. There is no third case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompileOutcome {
    /// It may run.
    Built {
        /// What it is written in.
        backend: Backend,
        /// Hash of what was built (source, toolchain, flags); the judge can build it again.
        key: Digest,
    },
    /// It may not.
    Rejected(Failure),
}

/// What a rule set says of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Verdict {
    /// Right on all trials that the rule set looks at.
    Correct {
        /// Reference time over kernel time, where times were taken.
        speedup: Option<f64>,
    },
    /// It ran, but an output is wrong.
    WrongValue {
        /// Trial, from 0.
        trial: u32,
        /// Output, from 0.
        output: u32,
    },
    /// It failed before its values could be compared.
    Failed(FailureKind),
    /// The task is at fault; nobody is scored.
    TaskRefused(TaskFault),
    /// It was taken out of the run; nobody is scored.
    Excluded,
}

impl Verdict {
    /// Whether the kernel is right.
    pub fn is_correct(&self) -> bool {
        matches!(self, Verdict::Correct { .. })
    }

    /// Whether the kernel was judged at all.
    pub fn is_judged(&self) -> bool {
        !matches!(self, Verdict::TaskRefused(_) | Verdict::Excluded)
    }
}

/// One module's line in a scored Proposer group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModuleScore {
    /// Which module.
    pub module: ModuleId,
    /// One verdict per kernel; empty for an invalid module, and one if that was taken out of the run.
    pub verdicts: Vec<Verdict>,
    /// Frontier reward.
    pub reward: f64,
    /// Reward relative to the group.
    pub advantage: f64,
}

/// One kernel's line in a scored Coder group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelScore {
    /// Which kernel.
    pub kernel: KernelId,
    /// What the rules say of it.
    pub verdict: Verdict,
    /// Correctness-aware reward.
    pub reward: f64,
    /// Reward relative to the group.
    pub advantage: f64,
}

/// The scores of one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Scores {
    /// Modules written for one API set.
    Modules(Vec<ModuleScore>),
    /// Kernels written for one module.
    Kernels(Vec<KernelScore>),
}

impl Scores {
    /// Whether some sample of the group carries a gradient.
    pub fn has_signal(&self) -> bool {
        match self {
            Scores::Modules(scores) => scores.iter().any(|s| s.advantage != 0.0),
            Scores::Kernels(scores) => scores.iter().any(|s| s.advantage != 0.0),
        }
    }
}

/// What a gradient step did. All figures are means over the batch unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// BLAKE3 of the new weights file.
    pub weights: Digest,
    /// The objective's value, to be minimised.
    pub loss: f64,
    /// k3 estimate of KL(policy ‖ reference), nats per token.
    pub kl: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Share of tokens whose ratio was clipped.
    pub clip_fraction: f64,
    /// k3 estimate of KL(sampler ‖ trainer), nats per token.
    pub mismatch_kl: f64,
    /// Entropy of the policy, nats per token.
    pub entropy: f64,
    /// Completion tokens in the batch.
    pub tokens: u64,
    /// Learning rate.
    pub learning_rate: f64,
}

/// The initial weights of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitialPolicy {
    /// Whose.
    pub role: Role,
    /// File name in the policy's folder and the blob that holds it; sorted by name.
    pub files: Vec<(String, BlobId)>,
}

/// What one job of the judge's service is to judge, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The reference's code.
    pub reference: BlobId,
    /// The candidate's code; empty if its answer held none.
    pub candidate: BlobId,
    /// What it must be written in, if that matters.
    pub backend: Option<Backend>,
    /// Which rules decide.
    pub profile: Rules,
    /// Seed of the inputs.
    pub seed: u64,
    /// Comparisons on fresh inputs.
    pub trials: u32,
    /// Whether to time, where there is a GPU.
    pub timing: bool,
    /// Higher is sooner. Not part of what is judged.
    pub priority: i32,
}

/// The coarse word of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Right on all trials.
    Correct,
    /// A wrong answer.
    Incorrect,
    /// Not the candidate's own work, or it left its sandbox.
    Rejected,
    /// It does not parse, compile or load.
    CompileError,
    /// It raised, or a fault of the device.
    RuntimeError,
    /// Its deadline passed.
    Timeout,
    /// It was built; running it needs a GPU.
    NoDevice,
    /// The task is at fault.
    TaskRefused,
}

/// Everything that can happen in a run, or in a log of the judge's service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The first event of a run.
    RunStarted {
        /// Its name, and the branch that ids are made in.
        run: RunId,
        /// The run's settings as canonical TOML.
        config: String,
        /// Version of the program.
        code: String,
        /// What it ran on: `(name, value)`, for people.
        environment: Vec<(String, String)>,
        /// The table that API sets are drawn from.
        api_table: BlobId,
        /// The weights it starts from.
        policies: Vec<InitialPolicy>,
    },
    /// A branch left its parent's log here; everything before is shared.
    RunForked {
        /// Name of the branch.
        run: RunId,
        /// Where it came from.
        parent: RunId,
        /// Hash of the last shared record.
        parent_head: Digest,
        /// Why, for people.
        reason: String,
    },
    /// A round began.
    RoundStarted {
        /// From 1.
        round: u32,
    },
    /// A phase of a round began.
    PhaseStarted {
        /// The round.
        round: u32,
        /// Whose phase.
        role: Role,
    },
    /// The Sampler drew one API set.
    ApisSampled {
        /// Its id.
        set: ApiSetId,
        /// The step that asked for it.
        step: StepRef,
        /// From 0 within the step.
        index: u32,
        /// Seed of the draw.
        seed: u64,
        /// Full API names, in the order of the prompt.
        apis: Vec<String>,
    },
    /// The Proposer wrote one module.
    ModuleProposed {
        /// Its id.
        module: ModuleId,
        /// The API set it answers.
        set: ApiSetId,
        /// From 0 within the group.
        index: u32,
        /// The answer.
        answer: Answer,
    },
    /// The Validator is done with a module.
    ModuleValidated {
        /// Which.
        module: ModuleId,
        /// What was observed.
        report: ModuleReport,
        /// What the rules say.
        validity: Validity,
    },
    /// The Coder wrote one kernel.
    KernelWritten {
        /// Its id.
        kernel: KernelId,
        /// The module it translates.
        module: ModuleId,
        /// The step that asked for it.
        step: StepRef,
        /// From 0 within the group.
        index: u32,
        /// The answer.
        answer: Answer,
    },
    /// The CompileWorker is done with a kernel.
    KernelCompiled {
        /// Which.
        kernel: KernelId,
        /// What came out.
        outcome: CompileOutcome,
    },
    /// The GpuExecutor is done with a kernel.
    KernelMeasured {
        /// Which.
        kernel: KernelId,
        /// What was observed.
        measurement: Measurement,
    },
    /// A group was complete and got its rewards.
    GroupScored {
        /// Which.
        group: GroupId,
        /// The step it belongs to.
        step: StepRef,
        /// The scores, in order of index.
        scores: Scores,
    },
    /// The Trainer has its batch.
    StepStarted {
        /// Which step.
        step: StepRef,
        /// The policy before.
        before: PolicyVersion,
        /// Groups with a signal, in order of index. Groups without one are not trained on.
        groups: Vec<GroupId>,
    },
    /// A gradient step was taken, or passed over because no group had a signal.
    StepTaken {
        /// Which step.
        step: StepRef,
        /// The policy before.
        before: PolicyVersion,
        /// The policy after; equal to `before` if there was no update.
        after: PolicyVersion,
        /// What the step did; `None` if no group had a signal.
        update: Option<Update>,
    },
    /// Weights and optimizer state became blobs.
    CheckpointSaved {
        /// Which weights.
        policy: PolicyVersion,
        /// File name and blob; sorted by name.
        files: Vec<(String, BlobId)>,
    },
    /// Files of a checkpoint are no longer needed to go on.
    CheckpointDropped {
        /// Which weights.
        policy: PolicyVersion,
        /// Names of the dropped files; sorted.
        files: Vec<String>,
    },
    /// A phase took all its steps.
    PhaseFinished {
        /// The round.
        round: u32,
        /// Whose phase.
        role: Role,
    },
    /// A round is over.
    RoundFinished {
        /// From 1.
        round: u32,
    },
    /// The world failed; nobody is rewarded for it, and the work is tried again.
    WorkFailed {
        /// What was being done.
        work: String,
        /// How often it has failed, from 1.
        attempt: u32,
        /// What went wrong.
        error: String,
    },
    /// Work stops until the run is resumed.
    RunPaused {
        /// Why.
        reason: String,
    },
    /// Work goes on.
    RunResumed,
    /// All rounds are over.
    RunFinished,
    /// The judge's service started on this log: what it judges from here on, it judges with these.
    ServiceStarted {
        /// Version of the program.
        code: String,
        /// What it runs on: `(name, value)`, for people.
        environment: Vec<(String, String)>,
    },
    /// A job was taken in; also one again that was cancelled or given up.
    JobSubmitted {
        /// Its id.
        job: JobId,
        /// The name that the client gave it.
        client: Option<String>,
        /// What is wanted.
        spec: JobSpec,
    },
    /// A job has its verdict.
    JobJudged {
        /// Which.
        job: JobId,
        /// The verdict's word.
        outcome: Outcome,
        /// The whole result as JSON, as `kernelzero judge --json` prints it.
        result: BlobId,
    },
    /// The world failed at a job; that is no verdict.
    JobFailed {
        /// Which.
        job: JobId,
        /// How often it has failed, from 1.
        attempt: u32,
        /// What went wrong.
        error: String,
        /// Whether it is not tried again.
        given_up: bool,
    },
    /// A job was cancelled before it had a verdict.
    JobCancelled {
        /// Which.
        job: JobId,
    },
    /// From here on a setting has another value; all decisions that follow are made with it.
    SettingChanged {
        /// Its dotted name in the config.
        key: String,
        /// Its value as TOML writes it; none takes away one that need not be there.
        value: Option<String>,
    },
    /// An actor was attached; the envelope names it.
    ActorAttached {
        /// What it is, for people: a command, or a built-in actor with its parameters.
        what: String,
    },
    /// It is attached no more.
    ActorDetached {
        /// Why.
        why: String,
    },
    /// What an attached actor asked for was refused.
    IntentRefused {
        /// What it wrote.
        intent: String,
        /// Why it cannot be.
        why: String,
    },
    /// A setting will have another value from a step on that has not opened yet.
    SettingPlanned {
        /// Its dotted name in the config.
        key: String,
        /// Its value as TOML writes it; none takes away one that need not be there.
        value: Option<String>,
        /// It acts when the first step at or after this one opens.
        from: StepRef,
    },
    /// API sets for a Proposer step that has not opened yet, in place of drawn ones.
    ApisProposed {
        /// Which step.
        step: StepRef,
        /// Full API names, in the order of the prompt, by index.
        sets: Vec<Vec<String>>,
    },
    /// An attached actor wrote something down.
    Noted {
        /// What.
        text: String,
    },
    /// From here on the judge's static rules are of this version. Without one before it, the version
    /// that decided is not known.
    PurityPolicyUsed {
        /// Version of the rules for modules and kernels.
        version: u32,
    },
    /// Samples were taken out of the run: nobody is rewarded for them, and no kernels are written for
    /// excluded modules in Coder phases.
    SamplesExcluded {
        /// Modules, with all kernels written for them; sorted.
        modules: Vec<ModuleId>,
        /// Kernels; sorted.
        kernels: Vec<KernelId>,
        /// Code of modules and kernels: what is written with it from here on is excluded too; sorted.
        sources: Vec<Digest>,
        /// Why, for people.
        reason: String,
    },
}

/// The names of all variants of [`Event`], in their order.
pub const NAMES: &[&str] = &[
    "RunStarted",
    "RunForked",
    "RoundStarted",
    "PhaseStarted",
    "ApisSampled",
    "ModuleProposed",
    "ModuleValidated",
    "KernelWritten",
    "KernelCompiled",
    "KernelMeasured",
    "GroupScored",
    "StepStarted",
    "StepTaken",
    "CheckpointSaved",
    "CheckpointDropped",
    "PhaseFinished",
    "RoundFinished",
    "WorkFailed",
    "RunPaused",
    "RunResumed",
    "RunFinished",
    "ServiceStarted",
    "JobSubmitted",
    "JobJudged",
    "JobFailed",
    "JobCancelled",
    "SettingChanged",
    "ActorAttached",
    "ActorDetached",
    "IntentRefused",
    "SettingPlanned",
    "ApisProposed",
    "Noted",
    "PurityPolicyUsed",
    "SamplesExcluded",
];

impl Event {
    /// The variant's name.
    pub fn name(&self) -> &'static str {
        match self {
            Event::RunStarted { .. } => "RunStarted",
            Event::RunForked { .. } => "RunForked",
            Event::RoundStarted { .. } => "RoundStarted",
            Event::PhaseStarted { .. } => "PhaseStarted",
            Event::ApisSampled { .. } => "ApisSampled",
            Event::ModuleProposed { .. } => "ModuleProposed",
            Event::ModuleValidated { .. } => "ModuleValidated",
            Event::KernelWritten { .. } => "KernelWritten",
            Event::KernelCompiled { .. } => "KernelCompiled",
            Event::KernelMeasured { .. } => "KernelMeasured",
            Event::GroupScored { .. } => "GroupScored",
            Event::StepStarted { .. } => "StepStarted",
            Event::StepTaken { .. } => "StepTaken",
            Event::CheckpointSaved { .. } => "CheckpointSaved",
            Event::CheckpointDropped { .. } => "CheckpointDropped",
            Event::PhaseFinished { .. } => "PhaseFinished",
            Event::RoundFinished { .. } => "RoundFinished",
            Event::WorkFailed { .. } => "WorkFailed",
            Event::RunPaused { .. } => "RunPaused",
            Event::RunResumed => "RunResumed",
            Event::RunFinished => "RunFinished",
            Event::ServiceStarted { .. } => "ServiceStarted",
            Event::JobSubmitted { .. } => "JobSubmitted",
            Event::JobJudged { .. } => "JobJudged",
            Event::JobFailed { .. } => "JobFailed",
            Event::JobCancelled { .. } => "JobCancelled",
            Event::SettingChanged { .. } => "SettingChanged",
            Event::ActorAttached { .. } => "ActorAttached",
            Event::ActorDetached { .. } => "ActorDetached",
            Event::IntentRefused { .. } => "IntentRefused",
            Event::SettingPlanned { .. } => "SettingPlanned",
            Event::ApisProposed { .. } => "ApisProposed",
            Event::Noted { .. } => "Noted",
            Event::PurityPolicyUsed { .. } => "PurityPolicyUsed",
            Event::SamplesExcluded { .. } => "SamplesExcluded",
        }
    }

    /// The thing it is about, for the index by id: set, module, kernel, group, run or job.
    pub fn subject(&self) -> Option<uuid::Uuid> {
        match self {
            Event::RunStarted { run, .. } | Event::RunForked { run, .. } => Some(run.0),
            Event::ApisSampled { set, .. } => Some(set.0),
            Event::ModuleProposed { module, .. } | Event::ModuleValidated { module, .. } => {
                Some(module.0)
            }
            Event::KernelWritten { kernel, .. }
            | Event::KernelCompiled { kernel, .. }
            | Event::KernelMeasured { kernel, .. } => Some(kernel.0),
            Event::GroupScored { group, .. } => Some(group.0),
            Event::JobSubmitted { job, .. }
            | Event::JobJudged { job, .. }
            | Event::JobFailed { job, .. }
            | Event::JobCancelled { job } => Some(job.0),
            Event::RoundStarted { .. }
            | Event::PhaseStarted { .. }
            | Event::StepStarted { .. }
            | Event::StepTaken { .. }
            | Event::CheckpointSaved { .. }
            | Event::CheckpointDropped { .. }
            | Event::PhaseFinished { .. }
            | Event::RoundFinished { .. }
            | Event::WorkFailed { .. }
            | Event::RunPaused { .. }
            | Event::RunResumed
            | Event::RunFinished
            | Event::ServiceStarted { .. }
            | Event::SettingChanged { .. }
            | Event::ActorAttached { .. }
            | Event::ActorDetached { .. }
            | Event::IntentRefused { .. }
            | Event::SettingPlanned { .. }
            | Event::ApisProposed { .. }
            | Event::Noted { .. }
            | Event::PurityPolicyUsed { .. }
            | Event::SamplesExcluded { .. } => None,
        }
    }

    /// The blobs it names.
    pub fn blobs(&self) -> Vec<BlobId> {
        match self {
            Event::RunStarted { api_table, policies, .. } => {
                let files = policies.iter().flat_map(|p| p.files.iter().map(|(_, blob)| *blob));
                std::iter::once(*api_table).chain(files).collect()
            }
            Event::ModuleProposed { answer, .. } | Event::KernelWritten { answer, .. } => {
                std::iter::once(answer.sample).chain(answer.source).collect()
            }
            Event::CheckpointSaved { files, .. } => files.iter().map(|(_, blob)| *blob).collect(),
            Event::JobSubmitted { spec, .. } => vec![spec.reference, spec.candidate],
            Event::JobJudged { result, .. } => vec![*result],
            Event::RunForked { .. }
            | Event::RoundStarted { .. }
            | Event::PhaseStarted { .. }
            | Event::ApisSampled { .. }
            | Event::ModuleValidated { .. }
            | Event::KernelCompiled { .. }
            | Event::KernelMeasured { .. }
            | Event::GroupScored { .. }
            | Event::StepStarted { .. }
            | Event::StepTaken { .. }
            | Event::CheckpointDropped { .. }
            | Event::PhaseFinished { .. }
            | Event::RoundFinished { .. }
            | Event::WorkFailed { .. }
            | Event::RunPaused { .. }
            | Event::RunResumed
            | Event::RunFinished
            | Event::ServiceStarted { .. }
            | Event::JobFailed { .. }
            | Event::JobCancelled { .. }
            | Event::SettingChanged { .. }
            | Event::ActorAttached { .. }
            | Event::ActorDetached { .. }
            | Event::IntentRefused { .. }
            | Event::SettingPlanned { .. }
            | Event::ApisProposed { .. }
            | Event::Noted { .. }
            | Event::PurityPolicyUsed { .. }
            | Event::SamplesExcluded { .. } => Vec::new(),
        }
    }
}
