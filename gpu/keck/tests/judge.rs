//! The judge against real workers: what it observes, what it keeps out, what it leaves behind.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{case, measure, misbehaving};
use events::outcome::{Execution, FailureKind, Measurement, ModuleRun, SourceReport};
use keck::{Config, Judge, ValidateJob};

fn validate(judge: &Judge, source: &str) -> ModuleRun {
    judge.validate(&ValidateJob { source: source.to_owned(), seed: 7, trials: 3 }).unwrap()
}

fn failed(measurement: &Measurement) -> FailureKind {
    match &measurement.execution {
        Execution::Failed(failure) => failure.kind,
        other => panic!("no failure: {other:?}"),
    }
}

#[test]
fn modules_are_observed() {
    let judge = common::judge(1);
    let ModuleRun::Ran { trials, depends_on_inputs, dead_parameters } =
        validate(&judge, &case("reference", "bias_linear"))
    else {
        panic!("bias_linear did not run");
    };
    assert_eq!(trials.len(), 3);
    assert!(trials.iter().all(|t| t.repeatable && t.nonfinite == 0 && t.spread > 0.0));
    assert!(trials[0].seed != trials[1].seed && trials[0].max_abs != trials[1].max_abs);
    assert_eq!((depends_on_inputs, dead_parameters), (Some(true), Vec::new()));

    let ModuleRun::Ran { trials, .. } = validate(&judge, &case("reference", "noise_always")) else {
        panic!("noise_always did not run");
    };
    assert!(trials.iter().all(|t| !t.repeatable));

    let failed = validate(&judge, &case("reference", "raises"));
    assert!(
        matches!(failed, ModuleRun::Failed { ref step, .. } if step == "forward"),
        "{failed:?}"
    );

    let lora = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = nn.Parameter(torch.ones(3))\n        self.b = nn.Parameter(torch.zeros(3))\n\n    def forward(self, x):\n        return x * 0.0 + self.a * self.b\n\n\ndef get_inputs():\n    return [torch.randn(3)]\n\n\ndef get_init_inputs():\n    return []\n";
    let ModuleRun::Ran { depends_on_inputs, dead_parameters, .. } = validate(&judge, lora) else {
        panic!("the zero-initialised module did not run");
    };
    assert_eq!(depends_on_inputs, Some(false));
    assert_eq!(dead_parameters, ["a"]);
}

#[test]
fn modules_cannot_overrun() {
    let limit = Duration::from_secs(3);
    let judge = Judge::new(Config { trial_timeout: limit, ..Config::default() }).unwrap();
    let endless = case("reference", "column_mean")
        .replace("return x.mean(dim=0)", "\n        while True:\n            print('x' * 1000)");
    assert!(matches!(validate(&judge, &endless), ModuleRun::Exceeded(_)));
    let hungry = case("reference", "column_mean")
        .replace("return x.mean(dim=0)", "return torch.zeros(1 << 36).sum(dim=0, keepdim=True)");
    let run = validate(&judge, &hungry);
    assert!(matches!(run, ModuleRun::Exceeded(_)), "{run:?}");
}

#[test]
fn candidates_are_confined() {
    let judge = common::judge(1);
    let module = case("reference", "leaky_scale");
    let canary = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(canary.path(), "secret").unwrap();
    let attempts = [
        format!("assert not __import__('os').path.exists({:?})", canary.path()),
        "import socket\ntry:\n    socket.socket()\n    raise SystemExit('socket')\nexcept OSError:\n    pass".to_owned(),
        "import os\ntry:\n    os.fork()\n    raise SystemExit('fork')\nexcept OSError:\n    pass".to_owned(),
        "import os\ntry:\n    os.open('/usr/keck-marker', os.O_CREAT | os.O_WRONLY)\n    raise SystemExit('write')\nexcept OSError:\n    pass".to_owned(),
        "import os\nassert os.getpid() == 1 and len([p for p in os.listdir('/proc') if p.isdigit()]) == 1".to_owned(),
        "import os\nassert os.environ.get('KECK_TEST_SECRET') is None and os.getuid() != 0 or os.getuid() == 0".to_owned(),
        "import os\ntry:\n    os.kill(0, 0)\n    os.setuid(0)\n    raise SystemExit('root')\nexcept OSError:\n    pass".to_owned(),
    ];
    for code in attempts {
        let found = measure(&judge, &module, &misbehaving(&code));
        assert!(matches!(found.execution, Execution::Ran { .. }), "{code}: {:?}", found.execution);
    }
    assert_eq!(std::fs::read_to_string(canary.path()).unwrap(), "secret");
    let gone = measure(&judge, &module, &misbehaving("import os\nos._exit(0)"));
    assert_eq!(failed(&gone), FailureKind::SandboxViolation);
    let crash = misbehaving("import ctypes\nctypes.string_at(1)");
    assert_eq!(failed(&measure(&judge, &module, &crash)), FailureKind::SandboxViolation);
    for layer in ["rlimits", "seccomp", "no-new-privs"] {
        assert!(gone.layers.iter().any(|l| l == layer), "{layer} of {:?}", gone.layers);
    }
}

#[test]
fn without_namespaces_the_rest_still_holds() {
    let isolation = keck::Isolation::LimitsOnly;
    let judge = Judge::new(Config { isolation, ..Config::default() }).unwrap();
    let module = case("reference", "leaky_scale");
    assert!(judge.layers().iter().any(|l| l == "landlock") || cfg!(not(target_os = "linux")));
    let honest = measure(&judge, &module, &case("kernels", "honest_leaky"));
    assert!(matches!(honest.execution, Execution::Ran { .. }), "{:?}", honest.execution);
    let canary = tempfile::NamedTempFile::new().unwrap();
    for verb in ["os.open({p!r}, os.O_RDONLY)", "os.open({p!r}, os.O_WRONLY)"] {
        let action = verb.replace("{p!r}", &format!("{:?}", canary.path()));
        let code = format!(
            "import os\ntry:\n    {action}\n    raise SystemExit('reached')\nexcept OSError:\n    pass"
        );
        let found = measure(&judge, &module, &misbehaving(&code));
        assert!(matches!(found.execution, Execution::Ran { .. }), "{code}: {:?}", found.execution);
    }
}

#[test]
fn forged_answers_are_not_believed() {
    let judge = common::judge(1);
    let module = case("reference", "leaky_scale");
    let forged = "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'{\"loaded\": true, \"blobs\": []}')\n    except OSError:\n        pass";
    // The first forged packet is taken for the answer to `load`; the next answers come out of step
    // and hold no outputs.
    let found = measure(&judge, &module, &misbehaving(forged));
    assert!(matches!(found.execution, Execution::Failed(_)), "{:?}", found.execution);
}

#[test]
fn doctor_names_what_is_there() {
    let checks = keck::doctor(&Config::default());
    for check in &checks {
        println!("{:12} {:5} {} [{}]", check.name, check.ok, check.detail, check.fix);
    }
    for name in ["python", "torch", "triton", "numpy", "scratch"] {
        assert!(checks.iter().any(|c| c.name == name && c.ok), "{name}");
    }
    let layers = common::judge(1).layers();
    assert!(!layers.is_empty() && layers.iter().all(|layer| keck::LAYERS.contains(&&**layer)));
    let missing = Judge::new(Config { python: "/nowhere/python".into(), ..Config::default() });
    assert!(matches!(missing, Err(keck::Error::PythonMissing(_))));
}

#[test]
fn module_reports() {
    let none = BTreeSet::new();
    let report = |name: &str| keck::rules::inspect_module(&case("reference", name), &none);
    let SourceReport::Parsed { missing, apis, forbidden } = report("bias_linear") else {
        panic!("bias_linear does not parse");
    };
    assert_eq!((missing, forbidden), (Vec::new(), Vec::new()));
    assert_eq!(apis, ["torch.nn.Linear"]);
    let SourceReport::Parsed { apis, .. } = report("leaky_scale") else { panic!() };
    assert_eq!(apis, ["torch.nn.functional.leaky_relu"]);
    let text = "import os\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return x.sum() + eval('1')\n";
    let tracked = BTreeSet::from(["torch.Tensor.sum".to_owned()]);
    let SourceReport::Parsed { missing, apis, forbidden } =
        keck::rules::inspect_module(text, &tracked)
    else {
        panic!()
    };
    assert_eq!(missing, ["get_inputs", "get_init_inputs"]);
    assert_eq!(apis, ["torch.Tensor.sum"]);
    assert_eq!(forbidden.len(), 2, "{forbidden:?}");
    let broken = keck::rules::inspect_module("def f(:\n", &none);
    assert!(matches!(broken, SourceReport::DoesNotParse(_)));
}
