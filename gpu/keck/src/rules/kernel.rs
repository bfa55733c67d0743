//! The static rules for candidates.

use events::outcome::{Backend, Failure, FailureKind};

use super::names::Names;
use super::reach::{Mode, reach};
use super::syntax::{Source, all};
use super::work::Inspector;
use super::{cuda, everywhere};

/// Reads a candidate's file: which language its kernels are in, or the first rule it breaks.
pub fn inspect_kernel(text: &str) -> Result<Backend, Failure> {
    let text = text.trim_start_matches('\u{feff}');
    let source = Source::parse(text).map_err(|why| Failure::new(FailureKind::CompileError, why))?;
    let names = Names::of(&source);
    let impure = |evidence: String| Failure::new(FailureKind::Impure, evidence);
    if !names.is_module("ModelNew") {
        let why = "no class ModelNew that derives from torch.nn.Module";
        return Err(Failure::new(FailureKind::MissingEntry, why));
    }
    if let Some(found) = everywhere::check(&source, &names) {
        return Err(impure(found));
    }
    if names.method("ModelNew", "forward").is_none() {
        return Err(Failure::new(FailureKind::MissingEntry, "ModelNew has no forward"));
    }
    let units = reach(&source, &names, "ModelNew", &["forward"]);
    let inspector = Inspector { source: &source, names: &names };
    if let Some(found) = units.iter().find_map(|unit| inspector.check(*unit)) {
        return Err(impure(found));
    }
    let texts = cuda_texts(&source);
    if texts.iter().any(|t| t.contains("__global__")) && mentions_load_inline(&source) {
        return match cuda::inspect_literals(&texts) {
            Some(found) => Err(impure(found)),
            None => Ok(Backend::Cuda),
        };
    }
    let launches = units.iter().any(|(_, mode)| *mode == Mode::Kernel);
    if !launches && names.kernels.is_empty() {
        return Err(impure("no-kernel: neither a @triton.jit kernel nor CUDA source".to_owned()));
    }
    Ok(Backend::Triton)
}

fn mentions_load_inline(source: &Source<'_>) -> bool {
    all(source.root())
        .into_iter()
        .any(|n| n.kind() == "identifier" && source.text(n) == "load_inline")
}

/// String literals that may be C++ text; docstrings are not.
fn cuda_texts(source: &Source<'_>) -> Vec<String> {
    let mut texts = Vec::new();
    for node in all(source.root()) {
        let statement = node.parent().is_some_and(|p| p.kind() == "expression_statement");
        if node.kind() != "string" || statement {
            continue;
        }
        let text = source.text(node);
        let quotes = text.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        let formatted =
            text.len() > quotes.len() && text[..text.len() - quotes.len()].contains('f');
        let inner = quotes.trim_matches(['"', '\'']);
        texts.push(if formatted {
            inner.replace("{{", "{").replace("}}", "}")
        } else {
            inner.to_owned()
        });
    }
    texts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HONEST: &str = include_str!("../../tests/cases/kernels/honest_leaky.py");

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = inspect_kernel(&text);
        }

        #[test]
        fn no_damage_panics(at in 0..HONEST.len(), length in 0usize..40, insert in "[ -~\n]{0,12}") {
            let mut text = HONEST.to_owned();
            let end = (at + length).min(text.len());
            text.replace_range(at..end, &insert);
            let _ = inspect_kernel(&text);
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let text = format!("x = {}1{}\n{HONEST}", "(".repeat(3000), ")".repeat(3000));
        assert!(inspect_kernel(&text).is_err());
        let text = format!("x = {}1\n{HONEST}", "-".repeat(900));
        assert!(inspect_kernel(&text).is_err());
    }

    #[test]
    fn encodings_and_letters() {
        let text = format!("# -*- coding: utf-7 -*-\n{HONEST}");
        assert!(inspect_kernel(&text).is_err());
        let text = HONEST.replace("slope", "sl\u{43e}pe");
        assert!(inspect_kernel(&text).is_err());
    }

    /// An honest kernel with lines before its launch.
    fn with(lines: &str) -> String {
        let launch = HONEST.lines().find(|l| l.contains("forward(self")).unwrap();
        let indent = " ".repeat(launch.len() - launch.trim_start().len() + 4);
        let lines: String = lines.lines().map(|l| format!("{indent}{l}\n")).collect();
        HONEST.replace(launch, &format!("{launch}\n{lines}"))
    }

    #[test]
    fn only_the_main_program_is_not_looked_at() {
        let text = |lines: &str| inspect_kernel(&format!("{HONEST}\n{lines}\n"));
        for guard in ["__name__ == '__main__'", "\"__main__\" == __name__"] {
            assert_eq!(
                text(&format!("if {guard}:\n    exec('1')")),
                Ok(Backend::Triton),
                "{guard}"
            );
        }
        assert_eq!(text("import logging\nlogging.getLogger(__name__)"), Ok(Backend::Triton));
        for lines in [
            "if __name__ == 'candidate':\n    exec('1')",
            "if __name__ != '__main__':\n    exec('1')",
            "if __name__ == '__main__':\n    pass\nelse:\n    exec('1')",
            "if __name__ == '__main__' or True:\n    exec('1')",
            "__name__ = '__main__'",
            "for __name__ in ['__main__']:\n    pass",
            "import math as __name__",
            "def __name__():\n    pass",
        ] {
            assert!(text(lines).is_err(), "{lines}");
        }
    }

    #[test]
    fn imports_that_nobody_uses() {
        let after = |lines: &str| format!("{HONEST}\n{lines}\n");
        for lines in [
            "import sys",
            "import numpy as np, random",
            "import os.path",
            "import sys\nif __name__ == '__main__':\n    sys.exit(0)",
        ] {
            assert_eq!(inspect_kernel(&after(lines)), Ok(Backend::Triton), "{lines}");
        }
        for lines in [
            "import sys\nx = sys",
            "import sys as s\ns.modules",
            "from sys import modules",
            "import torch._C",
            "import gc, numpy as np\nnp.ones(3)",
        ] {
            assert!(inspect_kernel(&after(lines)).is_err(), "{lines}");
        }
    }

    #[test]
    fn methods_of_containers_are_not_those_of_tensors() {
        for lines in [
            "sizes = [3, 1]\nsizes.sort()",
            "seen = set()\nseen.add(1)\nfor s in seen:\n    pass",
            "names = sorted([1])\nplace = names.index(1)",
            "where = x.device.index",
            "[2, 1].sort()",
        ] {
            assert_eq!(inspect_kernel(&with(lines)), Ok(Backend::Triton), "{lines}");
        }
        for lines in [
            "sizes = [3, 1]\nsizes = x\nsizes.sort()",
            "for sizes in [x]:\n    sizes.sort()",
            "seen = set()\nwith open as seen:\n    seen.add(1)",
            "(seen := x).add(x)",
            "seen, y = x, []\nseen.add(x)",
            "seen = []\n[seen.add(x) for seen in [x]]",
            "x.add(x)",
            "where = x.index",
            "self.seen = []\nself.seen = x\nself.seen.add(x)",
            "self.seen = []\nm = self\nm.seen = x\nself.seen.add(x)",
            "self.seen = []\nsetattr(self, 'seen', x)\nself.seen.add(x)",
        ] {
            assert!(inspect_kernel(&with(lines)).is_err(), "{lines}");
        }
    }
}
