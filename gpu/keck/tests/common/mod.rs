//! Reading case files and turning measurements into outcome words. The real rules live in
//! `events::rules`; this small copy only serves the tests.
#![allow(clippy::unwrap_used, dead_code, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use events::outcome::{Backend, Execution, Failure, FailureKind, Measurement, OutputStats};
use keck::{Build, BuildJob, Config, Error, Judge, MeasureJob};

/// One case file.
pub struct Case {
    pub name: String,
    pub source: String,
    pub header: BTreeMap<String, String>,
}

impl Case {
    pub fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let source = String::from_utf8_lossy(&bytes).into_owned();
        let text = source.trim_start_matches('\u{feff}');
        let header = text
            .lines()
            .take_while(|line| line.starts_with('#'))
            .filter_map(|line| line.trim_start_matches("# ").split_once(": "))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        Self { name, source, header }
    }

    pub fn backend(&self) -> Backend {
        if self.header.get("backend").is_some_and(|b| b == "cuda") {
            Backend::Cuda
        } else {
            Backend::Triton
        }
    }

    /// All outcomes that are fine, the best one first.
    pub fn accepted(&self) -> Vec<String> {
        let list = |key: &str| {
            let value = self.header.get(key).cloned().unwrap_or_default();
            value.split(',').map(|v| v.trim().to_owned()).filter(|v| !v.is_empty()).collect()
        };
        let mut all: Vec<String> = list("expect");
        all.extend::<Vec<String>>(list("accept"));
        all
    }
}

/// The case files of a folder in order.
pub fn cases(folder: &Path) -> Vec<Case> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "py"));
    paths.sort();
    paths.iter().map(|p| Case::read(p)).collect()
}

pub fn judge(workers: usize) -> Judge {
    let config = Config { workers, ..Config::default() };
    Judge::new(config).unwrap()
}

/// Static rules, build, measurement: what the outcome is called.
pub fn outcome(judge: &Judge, module: &str, case: &Case, build_cuda: bool) -> (String, String) {
    let backend = match keck::rules::inspect_kernel(&case.source) {
        Ok(backend) => backend,
        Err(failure) => return (word(&failure).to_owned(), format!("static {}", failure.detail)),
    };
    if backend == Backend::Cuda && !build_cuda {
        return ("static_ok".to_owned(), String::new());
    }
    match judged(judge, module, case, backend) {
        Ok(found) => found,
        Err(error) => ("judge_error".to_owned(), error.to_string()),
    }
}

fn judged(
    judge: &Judge,
    module: &str,
    case: &Case,
    backend: Backend,
) -> Result<(String, String), Error> {
    let build = judge.build(&BuildJob { source: case.source.clone(), backend })?;
    if let Build::Rejected(failure) = &build {
        return Ok((word(failure).to_owned(), failure.detail.clone()));
    }
    let headers = match &build {
        Build::Cuda { headers, .. } => format!("headers {headers:?} "),
        _ => String::new(),
    };
    let measurement = judge.measure(&MeasureJob {
        module_source: module.to_owned(),
        kernel_source: case.source.clone(),
        backend,
        build,
        seed: 20_261_130,
        trials: 7,
        timing: std::env::var_os("KECK_TIMING").is_some(),
    })?;
    Ok(match measurement.execution {
        Execution::Failed(failure) => {
            (word(&failure).to_owned(), format!("{:?} {}", failure.kind, failure.detail))
        }
        Execution::TaskAtFault(fault, text) => {
            ("task_refused".to_owned(), format!("{fault:?} {text}"))
        }
        Execution::NoDevice => ("no_device".to_owned(), headers),
        Execution::Ran { trials, timing, launches } => {
            let loose = !measurement.device.starts_with("cpu") && multiplies(module);
            for (index, trial) in trials.iter().enumerate() {
                if let Some(text) = trial.outputs.iter().find_map(|o| wrong(o, loose)) {
                    return Ok(("incorrect".to_owned(), format!("trial {index}: {text}")));
                }
            }
            ("correct".to_owned(), format!("{headers}launches {launches} {}", show(&timing)))
        }
    })
}

fn show(timing: &events::outcome::Timing) -> String {
    match timing {
        events::outcome::Timing::NotTaken => String::new(),
        events::outcome::Timing::Taken { candidate_ns, reference_ns } => {
            let median = |v: &[u64]| {
                let mut sorted = v.to_vec();
                sorted.sort_unstable();
                sorted.get(sorted.len() / 2).copied().unwrap_or(0)
            };
            format!("candidate {} ns, reference {} ns", median(candidate_ns), median(reference_ns))
        }
    }
}

fn multiplies(module: &str) -> bool {
    ["matmul", "Linear", "Conv"].iter().any(|word| module.contains(word))
}

/// The strict profile's test of one output, as `hacks.md` gives it.
fn wrong(stats: &OutputStats, loose: bool) -> Option<String> {
    if stats.nonfinite_mismatches > 0 {
        return Some(format!("{} non-finite mismatches", stats.nonfinite_mismatches));
    }
    if stats.exact_mismatches > 0 {
        return Some(format!("{} of {} differ", stats.exact_mismatches, stats.elements));
    }
    let tolerance = match stats.dtype.as_str() {
        "float16" => 2e-3,
        "bfloat16" => 1.6e-2,
        _ if loose => 2e-3,
        _ => 2e-5,
    };
    let worst = stats.hull.iter().map(|p| p.1).fold(0.0, f64::max);
    (worst > tolerance * stats.max_reference)
        .then(|| format!("error {worst:.3e} at scale {:.3e}", stats.max_reference))
}

pub fn word(failure: &Failure) -> &'static str {
    match failure.kind {
        FailureKind::NoCode
        | FailureKind::CompileError
        | FailureKind::ImportError
        | FailureKind::MissingEntry => "compile_error",
        FailureKind::InitError
        | FailureKind::StateMismatch
        | FailureKind::RuntimeError
        | FailureKind::IllegalAccess
        | FailureKind::OutOfMemory => "runtime_error",
        FailureKind::Timeout => "timeout",
        FailureKind::WrongShape | FailureKind::WrongDtype | FailureKind::InputsChanged => {
            "incorrect"
        }
        FailureKind::Impure | FailureKind::SuspiciousTiming | FailureKind::SandboxViolation => {
            "rejected"
        }
    }
}

/// A case of this repository, of `kernels` or `modules`.
pub fn case(kind: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(kind);
    std::fs::read_to_string(path.join(format!("{name}.py"))).unwrap()
}

/// Measures a Triton kernel on three trials.
pub fn measure(judge: &Judge, module: &str, kernel: &str) -> Measurement {
    judge
        .measure(&MeasureJob {
            module_source: module.to_owned(),
            kernel_source: kernel.to_owned(),
            backend: Backend::Triton,
            build: Build::Ready,
            seed: 7,
            trials: 3,
            timing: false,
        })
        .unwrap()
}

/// A kernel file whose import runs `code`, then behaves.
pub fn misbehaving(code: &str) -> String {
    case("kernels", "honest_leaky").replace("\n\n@triton.jit", &format!("\n{code}\n\n@triton.jit"))
}
