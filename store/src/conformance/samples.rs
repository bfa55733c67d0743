//! Events of every variant, with the forms of payload that matter.

use events::config::Rules;
use events::event::{
    Actor, Answer, CompileOutcome, Draft, Event, Finish, InitialPolicy, JobSpec, KernelScore,
    ModuleScore, Outcome, Scores, Stage, Update, Validity, Verdict,
};
use events::ids::{
    ApiSetId, Digest, GroupId, JobId, KernelId, ModuleId, PolicyVersion, Role, RunId, Seq, StepRef,
};
use events::outcome::{
    Backend, Execution, Failure, FailureKind, Headers, Measurement, ModuleReport, ModuleRun,
    ModuleTrial, OutputStats, Sides, SourceReport, Times, Timing, Trial,
};

const STEP: StepRef = StepRef { round: 2, role: Role::Coder, step: 19 };
const POLICY: PolicyVersion = PolicyVersion { role: Role::Coder, steps: 39 };

/// At least one draft of each variant of [`Event`], in the order of the enum but for forms that
/// were added later, always the same. Not a
/// legal history: it is for codecs and stores.
pub fn one_of_each() -> Vec<Draft> {
    let events =
        [started(), sampled(), judged(), trained(), served(), attached(), excluded()].concat();
    let draft =
        |(at, event)| Draft { cause: (at > 0).then_some(Seq(at)), actor: actor(at, &event), event };
    (0..).zip(events).map(draft).collect()
}

fn actor(at: u64, event: &Event) -> Actor {
    match event {
        Event::Noted { .. } => "reward-observer".parse().map_or(Actor::Trainer, Actor::Attached),
        _ if at.is_multiple_of(2) => Actor::RunControl,
        _ => Actor::Trainer,
    }
}

fn run() -> RunId {
    RunId::new(1_700_000_000_000, [7; 10])
}

fn set() -> ApiSetId {
    ApiSetId::at(run(), STEP, 0)
}

fn module() -> ModuleId {
    ModuleId::at(set(), STEP, 1)
}

fn kernel() -> KernelId {
    KernelId::at(run(), module(), STEP, 2)
}

fn files() -> Vec<(String, Digest)> {
    vec![
        ("model.safetensors".into(), Digest::of(b"m")),
        ("tokenizer.json".into(), Digest::of(b"t")),
    ]
}

fn answer(source: Option<Digest>) -> Answer {
    let (sample, finish) = (Digest::of(b"sample"), Finish::Stop);
    Answer { seed: u64::MAX - 1, policy: POLICY, sample, source, tokens: 4096, finish }
}

fn started() -> Vec<Event> {
    vec![
        Event::RunStarted {
            run: run(),
            config: "seed = 7\n[trainer]\nclip = 0.2\n".into(),
            code: "0.1.0+golden".into(),
            environment: vec![("device".into(), "cpu — ü".into())],
            api_table: Digest::of(b"apis"),
            policies: vec![InitialPolicy { role: Role::Proposer, files: files() }],
        },
        Event::RunForked {
            run: run(),
            parent: RunId::new(1, [1; 10]),
            parent_head: Digest::of(b"head"),
            reason: "ablation".into(),
        },
        Event::RoundStarted { round: 1 },
        Event::PhaseStarted { round: 1, role: Role::Proposer },
    ]
}

fn sampled() -> Vec<Event> {
    let apis = vec!["torch.nn.Linear".into(), "torch.relu".into()];
    vec![
        Event::ApisSampled { set: set(), step: STEP, index: 3, seed: 1 << 63, apis },
        Event::ModuleProposed { module: module(), set: set(), index: 1, answer: answer(None) },
        Event::ModuleValidated {
            module: module(),
            report: ModuleReport {
                source: SourceReport::Parsed {
                    missing: vec![],
                    apis: vec!["torch.relu".into()],
                    forbidden: vec!["open: open('x')".into()],
                },
                run: ModuleRun::Ran {
                    trials: vec![ModuleTrial {
                        seed: 1,
                        elements: 1 << 40,
                        nonfinite: 0,
                        max_abs: 1e300,
                        spread: f64::MIN_POSITIVE,
                        repeatable: true,
                    }],
                    depends_on_inputs: Some(true),
                    dead_parameters: vec!["fc.bias".into()],
                },
            },
            validity: Validity::Invalid { stage: Stage::Stable, reason: "constant".into() },
        },
        Event::KernelWritten {
            kernel: kernel(),
            module: module(),
            step: STEP,
            index: 2,
            answer: answer(Some(Digest::of(b"source"))),
        },
    ]
}

fn judged() -> Vec<Event> {
    let stats = OutputStats {
        dtype: "float32".into(),
        elements: 1024,
        nonfinite_mismatches: 0,
        nonfinite_reference: 1,
        exact_mismatches: 0,
        max_reference: 3.5,
        spread_reference: 2.25,
        hull: vec![(0.0, 1e-7), (3.5, 1e-6)],
    };
    let sides = Sides { candidate_ns: vec![1000, 1001], reference_ns: vec![2000, 1999] };
    let timing =
        Timing::Taken(Box::new(Times { calls: 2, eager: sides.clone(), graph: Some(sides) }));
    let trials = vec![Trial { seed: 9, varied: "x30+noise".into(), outputs: vec![stats] }];
    let rejected = Failure { kind: FailureKind::CompileError, detail: "line 3: `;`".into() };
    let verdicts = vec![
        Verdict::Correct { speedup: Some(1.5) },
        Verdict::WrongValue { trial: 1, output: 0 },
        Verdict::Failed(FailureKind::SandboxViolation),
    ];
    let score = |verdict| KernelScore { kernel: kernel(), verdict, reward: 0.1, advantage: -0.7 };
    let scores = vec![score(Verdict::Correct { speedup: None }), score(verdicts[1].clone())];
    let modules = ModuleScore { module: module(), verdicts, reward: 0.25, advantage: 0.0 };
    let key = Digest::of(b"build");
    let built = CompileOutcome::Built { backend: Backend::Triton, key };
    let (kernels, modules) = (Scores::Kernels(scores), Scores::Modules(vec![modules]));
    let of_kernels = GroupId::of_kernels(run(), module(), STEP);
    let of_modules = GroupId::of_modules(set(), STEP);
    vec![
        Event::KernelCompiled { kernel: kernel(), outcome: CompileOutcome::Rejected(rejected) },
        Event::KernelCompiled { kernel: kernel(), outcome: built },
        Event::KernelMeasured {
            kernel: kernel(),
            measurement: Measurement {
                execution: Execution::Ran { trials, launches: 2, timing },
                layers: vec!["pid-ns".into(), "landlock".into()],
                device: "cpu-interpreter".into(),
                products: true,
                headers: Some(Headers::Fast),
                wall_ms: 1234,
            },
        },
        Event::GroupScored { group: of_kernels, step: STEP, scores: kernels },
        Event::GroupScored { group: of_modules, step: STEP, scores: modules },
    ]
}

fn trained() -> Vec<Event> {
    let after = PolicyVersion { steps: POLICY.steps + 1, ..POLICY };
    let update = Update {
        weights: Digest::of(b"weights"),
        loss: -0.125,
        kl: 1e-9,
        grad_norm: 0.75,
        clip_fraction: 0.01,
        mismatch_kl: 0.0,
        entropy: 1.75,
        tokens: 1_000_000,
        learning_rate: 1e-6,
    };
    let groups = vec![GroupId::of_kernels(run(), module(), STEP)];
    let dropped = vec!["optimizer.safetensors".into()];
    let (work, error) = ("measure kernel".into(), "GPU 0 is lost".into());
    vec![
        Event::StepStarted { step: STEP, before: POLICY, groups },
        Event::StepTaken { step: STEP, before: POLICY, after, update: Some(update) },
        Event::CheckpointSaved { policy: after, files: files() },
        Event::CheckpointDropped { policy: POLICY, files: dropped },
        Event::PhaseFinished { round: 2, role: Role::Coder },
        Event::RoundFinished { round: 2 },
        Event::WorkFailed { work, attempt: 3, error },
        Event::RunPaused { reason: "asked to".into() },
        Event::RunResumed,
        Event::RunFinished,
    ]
}

fn served() -> Vec<Event> {
    let spec = JobSpec {
        reference: Digest::of(b"reference"),
        candidate: Digest::of(b"candidate"),
        backend: Some(Backend::Cuda),
        profile: Rules::Paper,
        seed: 1,
        trials: 5,
        timing: true,
        priority: -3,
    };
    let other = JobSpec { backend: None, profile: Rules::Strict, priority: 9, ..spec.clone() };
    let (job, named) = (JobId::new(1_700_000_000_001, [3; 10]), JobId::named("step 7 / 3"));
    let client = Some("step 7 / 3".into());
    let error = "the judge's Python is gone".to_owned();
    vec![
        Event::ServiceStarted {
            code: "0.1.0".into(),
            environment: vec![("device".into(), "cpu".into())],
        },
        Event::JobSubmitted { job, client: None, spec },
        Event::JobSubmitted { job: named, client, spec: other },
        Event::JobJudged { job, outcome: Outcome::TaskRefused, result: Digest::of(b"result") },
        Event::JobFailed { job: named, attempt: 3, error, given_up: true },
        Event::JobCancelled { job: named },
        Event::SettingChanged {
            key: "proposer.policy.freeze-at-step".into(),
            value: Some("40".into()),
        },
    ]
}

fn attached() -> Vec<Event> {
    vec![
        Event::ActorAttached { what: "python observer.py".into() },
        Event::ActorDetached { why: "it left".into() },
        Event::IntentRefused { intent: "{\"intent\": \"melt\"}".into(), why: "unknown".into() },
        Event::SettingPlanned { key: "coder.beta".into(), value: Some("0.5".into()), from: STEP },
        Event::ApisProposed { step: STEP, sets: vec![vec!["torch.relu".into()], vec![]] },
        Event::Noted { text: "mean reward 0.4".into() },
    ]
}

fn excluded() -> Vec<Event> {
    let score =
        KernelScore { kernel: kernel(), verdict: Verdict::Excluded, reward: 0.0, advantage: 0.0 };
    vec![
        Event::PurityPolicyUsed { version: 3 },
        Event::SamplesExcluded {
            modules: vec![module()],
            kernels: vec![kernel()],
            sources: vec![Digest::of(b"a cheat")],
            reason: "it calls torch".into(),
        },
        Event::GroupScored {
            group: GroupId::of_kernels(run(), module(), STEP),
            step: STEP,
            scores: Scores::Kernels(vec![score]),
        },
    ]
}
