//! Tasks and candidates with inputs and outputs of unusual kinds and sizes: each has a typed result
//! that says what is wrong, and the judge goes on.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::measure;
use events::config::Rules;
use events::outcome::{Execution, FailureKind, Measurement, ModuleRun, TaskFault};
use events::rules::verdict::verdict;
use keck::{Config, Judge, ValidateJob};

/// A module whose `forward` and inputs are expressions of `x` and of nothing.
fn module(forward: &str, inputs: &str) -> String {
    format!(
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x, *more):\n        return {forward}\n\n\ndef get_inputs():\n    return {inputs}\n\n\ndef get_init_inputs():\n    return []\n"
    )
}

/// A kernel that stores `value`, an expression of the loaded `v`, into a tensor made by `empty`.
fn kernel(value: &str, empty: &str, result: &str) -> String {
    format!(
        "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n\n\n@triton.jit\ndef each(src, dst, n, BLOCK: tl.constexpr):\n    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    v = tl.load(src + at, mask=at < n)\n    tl.store(dst + at, {value}, mask=at < n)\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x, *more):\n        x = x.contiguous()\n        y = {empty}\n        if x.numel() > 0:\n            each[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)\n        return {result}\n"
    )
}

const SAME: &str = "torch.empty_like(x)";

fn twice() -> String {
    kernel("v * 2", SAME, "y")
}

fn correct(found: &Measurement) -> bool {
    verdict(found, Rules::Strict).is_some_and(|verdict| verdict.is_correct())
}

fn failed(found: &Measurement) -> (FailureKind, String) {
    match &found.execution {
        Execution::Failed(failure) => (failure.kind, failure.detail.clone()),
        other => panic!("no failure: {other:?}"),
    }
}

fn task_fault(found: &Measurement) -> (TaskFault, String) {
    match &found.execution {
        Execution::TaskAtFault(fault, text) => (*fault, text.clone()),
        other => panic!("no fault of the task: {other:?}"),
    }
}

#[test]
fn inputs_of_every_kind() {
    let judge = common::judge(1);
    for (forward, inputs, kernel) in [
        ("x * 2", "[torch.randint(-9, 9, (70,))]", twice()),
        ("x * 2", "[torch.randint(0, 9, (7, 11), dtype=torch.int32)]", twice()),
        ("~x", "[torch.rand(65) > 0.5]", kernel("v == 0", SAME, "y")),
        ("x * 2", "[torch.randn(9, 17).t()]", twice()),
        ("x * 2", "[torch.randn(4, 1).expand(4, 33)]", twice()),
        ("x * 2", "[torch.randn(40)[::3]]", twice()),
        ("x * 2", "(torch.randn(3, 3),)", twice()),
        ("x * 2", "[torch.tensor(1.5)]", twice()),
        ("x * 2", "[torch.randn(8), 3, None, 'mean', [1, 2]]", twice()),
    ] {
        let found = measure(&judge, &module(forward, inputs), &kernel);
        assert!(correct(&found), "{inputs}: {:?}", found.execution);
        let wrong = kernel.replace("v * 2", "v * 3").replace("v == 0", "v != 0");
        let found = measure(&judge, &module(forward, inputs), &wrong);
        assert!(!correct(&found), "{inputs}");
    }
}

/// Nothing to compute is nothing to judge: such a task is refused by name, and so is one whose
/// results nobody can compare.
#[test]
fn tasks_without_a_result_are_refused() {
    let judge = common::judge(1);
    for (forward, inputs, named) in [
        ("x * 2", "[torch.randn(0, 4)]", ""),
        ("{'y': x * 2}", "[torch.randn(8)]", "not tensors"),
        ("float(x.sum())", "[torch.randn(8)]", "not tensors"),
        ("None", "[torch.randn(8)]", "not tensors"),
        ("[]", "[torch.randn(8)]", "not tensors"),
        ("(x, 3)", "[torch.randn(8)]", "not tensors"),
        ("x.to(torch.complex128)", "[torch.randn(8)]", "dtype"),
        ("x / 0 * 0", "[torch.randn(8)]", "finite"),
    ] {
        let found = measure(&judge, &module(forward, inputs), &twice());
        let (fault, text) = task_fault(&found);
        assert_eq!(fault, TaskFault::Degenerate, "{forward}: {text}");
        assert!(text.contains(named), "{forward}: {text}");
    }
    for (forward, inputs, named) in [
        ("x.no_such_thing()", "[torch.randn(8)]", "no_such_thing"),
        ("x", "1 / 0", "ZeroDivisionError"),
        ("x", "[object()]", "object"),
        ("x.sparse_mask(x)", "[torch.randn(8)]", "forward"),
    ] {
        let found = measure(&judge, &module(forward, inputs), &twice());
        let (fault, text) = task_fault(&found);
        assert_eq!(fault, TaskFault::ReferenceFailed, "{forward}: {text}");
        assert!(text.contains(named), "{forward}: {text}");
    }
    for lacking in ["class Model", "def get_inputs", "def get_init_inputs"] {
        let whole = module("x * 2", "[torch.randn(8)]");
        let found = measure(&judge, &whole.replace(lacking, &format!("{lacking}_gone")), &twice());
        let (fault, text) = task_fault(&found);
        assert_eq!(fault, TaskFault::ReferenceFailed);
        assert!(text.contains(lacking.rsplit(' ').next().unwrap()), "{lacking}: {text}");
    }
}

#[test]
fn results_of_another_kind_are_named() {
    let judge = common::judge(1);
    let one = module("x * 2", "[torch.randn(8)]");
    for (result, kind, named) in [
        ("{'y': y}", FailureKind::WrongDtype, "dict"),
        ("1.0", FailureKind::WrongDtype, "float"),
        ("None", FailureKind::WrongDtype, "NoneType"),
        ("'text'", FailureKind::WrongDtype, "str"),
        ("y.as_subclass(type('Lazy', (torch.Tensor,), {}))", FailureKind::WrongDtype, "Lazy"),
        ("y.to_sparse()", FailureKind::Impure, "to_sparse"),
        ("(y, y.clone())", FailureKind::WrongShape, "2 outputs instead of 1"),
        ("()", FailureKind::WrongShape, "0 outputs instead of 1"),
        ("y.view(2, 4)", FailureKind::WrongShape, "[2, 4] instead of [8]"),
        ("y[:0]", FailureKind::WrongShape, "[0] instead of [8]"),
    ] {
        let found = measure(&judge, &one, &kernel("v * 2", SAME, result));
        let (found_kind, text) = failed(&found);
        assert_eq!(found_kind, kind, "{result}: {text}");
        assert!(text.contains(named), "{result}: {text}");
    }
    // A list is as good as a tuple, and one tensor in it as good as alone.
    let pair = module("(x * 2, x * 2)", "[torch.randn(8)]");
    assert!(correct(&measure(&judge, &pair, &kernel("v * 2", SAME, "[y, y.clone()]"))));
    assert!(correct(&measure(&judge, &one, &kernel("v * 2", SAME, "[y]"))));
    let (kind, text) = failed(&measure(&judge, &pair, &twice()));
    assert_eq!((kind, text.as_str()), (FailureKind::WrongShape, "1 outputs instead of 2"));
    for (from, to, kind) in [
        ("forward(self, x, *more)", "forward(self)", FailureKind::RuntimeError),
        ("forward(self, x, *more)", "forward(self, x, y, z)", FailureKind::RuntimeError),
        ("class ModelNew(nn.Module)", "class ModelNew", FailureKind::MissingEntry),
        ("class ModelNew(nn.Module)", "class Model(nn.Module)", FailureKind::MissingEntry),
        ("import torch.nn as nn", "import torch.nn as", FailureKind::CompileError),
    ] {
        let (found, text) = failed(&measure(&judge, &one, &twice().replace(from, to)));
        assert_eq!(found, kind, "{to}: {text}");
    }
}

/// What is too large for the judge is the task's fault when the task asks for it and the candidate's
/// when it hands it over; the result names the limit, and the next one is judged as if nothing had
/// been.
#[test]
fn what_is_too_large_is_named() {
    let limits = Config { file_mib: 4, memory_mib: 512, ..Config::default() };
    let judge = Judge::new(limits).unwrap();
    let small = module("x * 2", "[torch.randn(8)]");
    let large = module("x[:8] * 2", "[torch.randn(2 << 20)]");
    let (fault, text) = task_fault(&measure(&judge, &large, &twice()));
    assert_eq!(fault, TaskFault::ReferenceFailed);
    assert!(text.contains("inputs: 8388") && text.contains("4194304"), "{text}");
    let run = judge.validate(&ValidateJob { source: large, seed: 7, trials: 1 }).unwrap();
    assert!(matches!(&run, ModuleRun::Exceeded(text) if text.contains("4194304")), "{run:?}");
    let huge = module("x[:8] * 2", "[torch.randn(1 << 30)]");
    let (fault, text) = task_fault(&measure(&judge, &huge, &twice()));
    assert_eq!(fault, TaskFault::ReferenceFailed);
    assert!(text.contains("can't allocate memory"), "{text}");
    let result = "y.new_empty(2 << 20)";
    let (kind, text) = failed(&measure(&judge, &small, &kernel("v * 2", SAME, result)));
    assert_eq!(kind, FailureKind::OutOfMemory);
    assert!(text.contains("outputs: 8388") && text.contains("4194304"), "{text}");
    let (kind, _) = failed(&measure(&judge, &small, &kernel("v * 2", "x.new_empty(1 << 30)", "y")));
    assert_eq!(kind, FailureKind::OutOfMemory);
    assert!(correct(&measure(&judge, &small, &twice())));
}

/// Large tensors are sealed and shared instead of copied: right, wrong and meddling candidates are told
/// apart as with small ones, and so they are where the task itself writes to its input.
#[test]
fn large_tensors_are_judged_as_small_ones() {
    let judge = common::judge(1);
    let wide =
        |text: String| text.replace("BLOCK=64", "BLOCK=1 << 19").replace(", 64)", ", 1 << 19)");
    let inputs = "[torch.randn(3 << 19)]";
    let right = wide(twice());
    let late = wide(kernel("tl.where(at == 3 * 524288 - 1, v, v * 2)", SAME, "y"));
    let meddling =
        right.replace("tl.store(dst", "tl.store(src + at, v + 1, mask=at == 9)\n    tl.store(dst");
    let plain = module("x * 2", inputs);
    assert!(correct(&measure(&judge, &plain, &right)));
    assert!(!correct(&measure(&judge, &plain, &late)));
    let (kind, text) = failed(&measure(&judge, &plain, &meddling));
    assert_eq!(
        (kind, text.as_str()),
        (FailureKind::InputsChanged, "input tensor 0 was written to")
    );
    let writing = module("x.mul_(2)", inputs);
    let in_place = wide(kernel("v * 2", "x", "x"));
    assert!(correct(&measure(&judge, &writing, &in_place)));
    // Outputs are right, but the input keeps what it was.
    assert!(!correct(&measure(&judge, &writing, &right)));
}
