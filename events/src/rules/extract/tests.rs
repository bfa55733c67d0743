//! Answers as models write them.

use proptest::prelude::*;

use super::*;

const KERNEL: &str = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n";

fn code(answer: &str) -> Option<String> {
    Extractor::Parsed.code(answer, Role::Coder)
}

fn is_kernel(answer: &str) {
    assert_eq!(code(answer).as_deref(), Some(KERNEL), "{answer}");
}

#[test]
fn the_block_that_defines_what_was_asked_for_counts() {
    let usage = "```python\nmodel = ModelNew()\nprint(model(x))\n```\n";
    is_kernel(&format!("Tiling.\n```python\n{KERNEL}```\nUse it:\n{usage}"));
    is_kernel(&format!("```python\n{}```\nBetter:\n```python\n{KERNEL}```", KERNEL.to_uppercase()));
    let worse = KERNEL.replace("pass", "x = 1");
    is_kernel(&format!("```python\n{worse}```\nBetter:\n```python\n{KERNEL}```\n"));
    is_kernel(&format!("```cpp\nint class = 1;\n```\n```\n{KERNEL}```\n```cuda\nfloat x;\n```\n"));
    let module = KERNEL.replace("ModelNew", "Model");
    let both = format!("```python\n{module}```\n```python\n{KERNEL}```\n");
    is_kernel(&both);
    assert_eq!(Extractor::Parsed.code(&both, Role::Proposer), Some(module));
    // Not at the top level, only in a string, another name, only compared.
    for other in
        ["if x:\n    class ModelNew:\n        pass\n", "x = '''\nclass ModelNew(a):\n'''\n"]
    {
        is_kernel(&format!("```python\n{KERNEL}```\n```python\n{other}```\n"));
    }
    for other in ["class ModelNewest(M):\n    pass\n", "ModelNew == 1\n", "# class ModelNew:\n"] {
        is_kernel(&format!("```python\n{KERNEL}```\n```python\n{other}```\n"));
    }
    assert_eq!(code("```python\na\n```\n```python\nb\n```").as_deref(), Some("b\n"));
}

#[test]
fn the_language_of_a_fence_counts_less_than_its_content() {
    is_kernel(&format!("```cuda\n{KERNEL}```\n"));
    is_kernel(&format!("```python title=\"a.py\"\n{KERNEL}```\n"));
    is_kernel(&format!("``` {{.python .numberLines}}\n{KERNEL}```\n"));
    is_kernel(&format!("```Python3\n{KERNEL}```\n```bash\npip install x\n```\n"));
    assert_eq!(code("```cpp\nint x;\n```\n"), None);
}

#[test]
fn fences_within_strings_end_nothing() {
    let documented = KERNEL.replace(
        "    pass",
        "    \"\"\"Use:\n    ```python\n    ModelNew()(x)\n    ```\n    It's quick.\n    \"\"\"",
    );
    let expected = Some(documented.as_str());
    assert_eq!(code(&format!("Here:\n```python\n{documented}```\nDone.")).as_deref(), expected);
    assert_eq!(code(&documented).as_deref(), expected, "a plain file");
    assert_eq!(code(&format!("~~~python\n{documented}~~~\n")).as_deref(), expected);
    assert_eq!(code(&format!("````\n{documented}````\n")).as_deref(), expected);
    let left = KERNEL.replace("    pass", "    \"\"\"Look:\n```\nx\n```\n    \"\"\"");
    let answer = format!("```python\n{left}```\n```python\nprint('''x''')\n```\n");
    assert_eq!(code(&answer).as_deref(), Some(left.as_str()), "at the margin");
    // A string that is never closed does not swallow the better answer after it.
    is_kernel(&format!("```python\nx = '''never\n```\nIt's better so:\n```python\n{KERNEL}```\n"));
}

#[test]
fn thoughts_are_not_said() {
    let draft = KERNEL.replace("pass", "draft = 1");
    let fenced = format!("```python\n{KERNEL}```\n");
    is_kernel(&format!("<think>\n```python\n{draft}```\n</think>\n{fenced}"));
    is_kernel(&format!("{fenced}<think>\n```python\n{draft}```\n</think>\n"));
    is_kernel(&format!("\u{feff}\n<think>\n```python\nclass Model\n</think>\n\n{fenced}"));
    // The tag that opens stands in the prompt.
    is_kernel(&format!("Let me see.\n```python\n{draft}```\nYes.</think>\n{fenced}"));
    is_kernel(&format!("<think>hm</think><think>```</think>\n{KERNEL}"));
    assert_eq!(code(&format!("<think>\n```python\n{draft}```\n")), None);
    let tagged = KERNEL.replace("pass", "tag = \"</think>\"");
    assert_eq!(code(&format!("```python\n{tagged}```\n")), Some(tagged));
}

#[test]
fn texts_from_anywhere() {
    is_kernel(KERNEL);
    is_kernel(&format!("\u{feff}{KERNEL}"));
    is_kernel(&format!("```python\n\u{feff}{KERNEL}```"));
    let lines = KERNEL.replace('\n', "\r\n");
    let answer = format!("Here.\r\n```python\r\n{lines}```\r\n");
    assert_eq!(code(&answer), Some(lines.clone()));
    assert_eq!(code(&lines), Some(lines));
    let indented: String = KERNEL.lines().map(|line| format!("   {line}\n")).collect();
    is_kernel(&format!("1. So:\n\n   ```python\n{indented}   ```\n2. Bye.\n"));
    let tabbed: String = KERNEL.lines().map(|line| format!("\t{line}\n")).collect();
    is_kernel(&format!("- So:\n\t```python\n{tabbed}\t```\n"));
}

#[test]
fn what_was_not_closed() {
    is_kernel(&format!("So:\n```python\n{KERNEL}"));
    // A complete answer is better than one that may have been cut.
    let draft = KERNEL.replace("pass", "cut = 1");
    is_kernel(&format!("```python\n{KERNEL}```\n```python\n{draft}"));
    is_kernel(&format!("```python\n{KERNEL}```\n```python\nimport os\n"));
    assert_eq!(code(&format!("```python\n{KERNEL}x = f(")), None, "cut within brackets");
    assert_eq!(code("```python\nx = 1\n"), None);
    assert_eq!(code("no code"), None);
    assert_eq!(code(""), None);
    assert_eq!(code("```python\n\n```"), None);
    assert_eq!(code(&format!("```\n{KERNEL}{}```", "# x\n".repeat(20_000))), None);
}

/// Answers as long as can be are read in one go, whatever they hold.
#[test]
#[allow(clippy::disallowed_types)] // the test's clock, not a rule's
fn no_answer_takes_long() {
    let start = std::time::Instant::now();
    for part in ["```\n'''\n", "```python\n", "~~~\n(\n", "<think>\n", "</think>\n", "'''\n```\n"] {
        code(&part.repeat((1 << 20) / part.len()));
    }
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

/// Statements that are whole, among them fences and quotes in strings and comments.
fn statement() -> impl Strategy<Value = String> {
    let strings = ["'a'", "\"it's\"", "'''\n```\nx\n```\n'''", "r\"\"\"\n~~~\n'\n\"\"\"", "'\\''"];
    prop_oneof![
        proptest::sample::select(strings.map(str::to_owned).to_vec())
            .prop_map(|s| format!("x = {s}\n")),
        "[a-z]{1,8}".prop_map(|name| format!("def {name}(a, b):\n    return [a, (b)]\n")),
        "[ -_a-z{-~]{0,20}".prop_map(|text| format!("# {text}\n")),
        Just("\n".to_owned()),
        Just("y = (1,\n     2)\n".to_owned()),
    ]
}

proptest! {
    #[test]
    fn any_file_comes_back_as_it_is(
        before in proptest::collection::vec(statement(), 0..6),
        after in proptest::collection::vec(statement(), 0..6),
        draft in proptest::collection::vec(statement(), 0..4),
        fence in proptest::sample::select(vec!["```", "````", "~~~"]),
    ) {
        let file = format!("{}{KERNEL}{}", before.concat(), after.concat());
        prop_assert_eq!(code(&file), Some(file.clone()));
        let chatty = format!("Here it is.\n{fence}python\n{file}{fence}\nIt is quick.\n");
        prop_assert_eq!(code(&chatty), Some(file.clone()));
        let thought = format!("<think>\n```python\n{}\n</think>\n{chatty}", draft.concat());
        prop_assert_eq!(code(&thought), Some(file));
    }

    #[test]
    fn any_text_is_read_without_a_panic(text in "(```|~~~|\n|'|\"|<think>|</think>|class ModelNew:|[a-z\u{e9} (\\\\]){0,60}") {
        for extractor in [Extractor::Fences, Extractor::Parsed] {
            if let Some(code) = extractor.code(&text, Role::Coder) {
                prop_assert!(!code.trim().is_empty() && code.len() <= SOURCE_MAX);
            }
        }
    }
}
