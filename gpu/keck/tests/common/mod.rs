//! Reading case files and turning measurements into outcome words.
#![allow(clippy::unwrap_used, dead_code, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use events::config::Rules;
use events::outcome::{Backend, Execution, Measurement};
use events::rules::verdict::verdict;
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
pub fn outcome(judge: &Judge, module: &str, case: &Case) -> (String, String) {
    let backend = match keck::rules::inspect_kernel(&case.source) {
        Ok(backend) => backend,
        Err(failure) => {
            return (failure.kind.outcome().to_owned(), format!("static {}", failure.detail));
        }
    };
    if backend == Backend::Cuda {
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
        return Ok((failure.kind.outcome().to_owned(), failure.detail.clone()));
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
        timing: false,
    })?;
    Ok(match &measurement.execution {
        Execution::Failed(failure) => {
            (failure.kind.outcome().to_owned(), format!("{:?} {}", failure.kind, failure.detail))
        }
        Execution::TaskAtFault(fault, text) => {
            ("task_refused".to_owned(), format!("{fault:?} {text}"))
        }
        Execution::NoDevice => ("no_device".to_owned(), headers),
        Execution::Ran { launches, .. } => {
            let text = format!("{headers}launches {launches}");
            match verdict(&measurement, Rules::Strict) {
                Some(found) if found.is_correct() => ("correct".to_owned(), text),
                found => ("incorrect".to_owned(), format!("{found:?}")),
            }
        }
    })
}

/// A case of this repository, of `kernels` or `modules`.
pub fn case(kind: &str, name: &str) -> String {
    let path =
        Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("tests/cases").join(kind);
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
    // What candidates cannot import is taken back first: the layers below must hold without it.
    let free = "__builtins__['__import__'] = __builtins__['__import__'].__globals__['real_import']";
    let code = format!("\n{free}\n{code}\n\n@triton.jit");
    case("kernels", "honest_leaky").replace("\n\n@triton.jit", &code)
}

/// Processes whose command line names a folder.
pub fn processes(folder: &Path) -> Vec<i32> {
    let name = folder.to_string_lossy().into_owned();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let named = entries.filter(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&name)
    });
    named.filter_map(|e| e.file_name().to_string_lossy().parse().ok()).collect()
}
