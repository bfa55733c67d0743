//! The first extractor: fences by lines, whatever they hold. Kept as it was, because logs that were
//! written with it must still audit.

use super::SOURCE_MAX;

/// The last complete fenced block of `answer` (three or more backticks; language `python`, `py` or
/// none). `None` if there is no complete block, if it is empty or longer than [`SOURCE_MAX`].
pub(super) fn code(answer: &str) -> Option<&str> {
    let mut last = None;
    let mut open: Option<(usize, usize, bool)> = None;
    let mut offset = 0;
    for line in answer.split_inclusive('\n') {
        let trimmed = line.trim_end_matches(['\n', '\r']);
        let ticks = trimmed.len() - trimmed.trim_start_matches('`').len();
        match open {
            None if ticks >= 3 => {
                let language = trimmed[ticks..].trim();
                let wanted = matches!(language, "" | "python" | "py" | "Python");
                open = Some((ticks, offset + line.len(), wanted));
            }
            Some((opened, start, wanted))
                if ticks >= opened && trimmed[ticks..].trim().is_empty() =>
            {
                if wanted {
                    last = Some(&answer[start..offset]);
                }
                open = None;
            }
            None | Some(_) => {}
        }
        offset += line.len();
    }
    last.filter(|code| !code.trim().is_empty() && code.len() <= SOURCE_MAX)
}

#[cfg(test)]
mod tests {
    use super::code;

    #[test]
    fn the_last_complete_python_block_counts() {
        assert_eq!(code("Tiling.\n```python\nx = 1\n```\nbye"), Some("x = 1\n"));
        assert_eq!(code("```python\na\n```\n```python\nb\n```"), Some("b\n"));
        assert_eq!(code("```\na\n```\n```cpp\nb\n```"), Some("a\n"));
        assert_eq!(code("````python\n```\nx\n````\n"), Some("```\nx\n"));
    }

    #[test]
    fn half_an_answer_is_no_answer() {
        assert_eq!(code("no code"), None);
        assert_eq!(code("```python\nx = 1\n"), None);
        assert_eq!(code("```python\n\n```"), None);
        assert_eq!(code(&format!("```\n{}\n```", "x".repeat(70_000))), None);
    }
}
