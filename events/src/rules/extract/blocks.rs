//! The fenced blocks of an answer, and what of it is said rather than thought.

use std::borrow::Cow;

use super::{SOURCE_MAX, python::Reader};

/// Text that is read in all to find out which fence closes a block. Beyond it the first one does:
/// no answer may take long.
const READ_MAX: usize = 4 << 20;

const PYTHON: [&str; 6] = ["", "python", "py", "python3", "py3", "triton"];

/// A fenced block.
#[derive(Debug)]
pub(super) struct Block<'a> {
    /// Its text, without the indentation of its fence.
    pub text: Cow<'a, str>,
    /// Whether its fence says Python, or nothing.
    pub python: bool,
    /// Whether it ended before the answer did.
    pub closed: bool,
}

/// What follows the thoughts of an answer, without a byte order mark.
pub(super) fn spoken(answer: &str) -> &str {
    let mut rest = answer.trim_start_matches('\u{feff}');
    if !rest.contains("think>") {
        return rest;
    }
    loop {
        let opened = rest.trim_start().starts_with("<think>");
        match (end_of_thought(rest, opened), opened) {
            (Some(end), _) => rest = rest[end..].trim_start_matches(['\r', '\n']),
            // Nothing was said yet.
            (None, true) => return "",
            (None, false) => return rest,
        }
    }
}

/// Where the first thought ends. The tag may be missing at the beginning, where the prompt holds
/// it; then the one at the end must stand at the end of its line, or it may be a part of code.
fn end_of_thought(text: &str, opened: bool) -> Option<usize> {
    const END: &str = "</think>";
    if opened {
        return text.find(END).map(|at| at + END.len());
    }
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        // A thought that begins later is no end of one before it.
        if line.trim_start().starts_with("<think>") {
            return None;
        }
        let said = line.trim_end();
        if said.ends_with(END) {
            return Some(offset + said.len());
        }
        offset += line.len();
    }
    None
}

/// A fence: its character, how often, how far it is indented, what follows.
struct Fence<'a> {
    mark: char,
    count: usize,
    indent: usize,
    info: &'a str,
}

fn fence(line: &str) -> Option<Fence<'_>> {
    let body = line.trim_end_matches(['\n', '\r']);
    let trimmed = body.trim_start_matches([' ', '\t']);
    let mark = trimmed.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let info = trimmed.trim_start_matches(mark);
    let count = trimmed.len() - info.len();
    // Backticks after backticks are code within a line.
    let fits = count >= 3 && !(mark == '`' && info.contains('`'));
    fits.then_some(Fence { mark, count, indent: body.len() - trimmed.len(), info: info.trim() })
}

impl Fence<'_> {
    fn closes(&self, opening: &Fence<'_>) -> bool {
        self.mark == opening.mark && self.count >= opening.count && self.info.is_empty()
    }

    /// Whether the first word after the fence is a name of Python.
    fn says_python(&self) -> bool {
        let word = self.info.trim_start_matches(['{', '.', ' ']);
        let end = word.find(|c: char| !c.is_alphanumeric() && c != '+').unwrap_or(word.len());
        PYTHON.iter().any(|name| name.eq_ignore_ascii_case(&word[..end]))
    }
}

/// All blocks in order.
pub(super) fn blocks(answer: &str) -> Vec<Block<'_>> {
    let lines: Vec<&str> = answer.split_inclusive('\n').collect();
    let thinks = answer.contains("<think>");
    let mut found = Vec::new();
    let mut budget = READ_MAX;
    let mut at = 0;
    while at < lines.len() {
        let Some(opening) = fence(lines[at]) else {
            if thinks && lines[at].trim_start().starts_with("<think>") {
                at += lines[at..].iter().take_while(|line| !line.contains("</think>")).count();
            }
            at += 1;
            continue;
        };
        let body = &lines[at + 1..];
        let end = closing(&opening, body, &mut budget);
        let inside = &body[..end.unwrap_or(body.len())];
        let text = match opening.indent {
            0 => Cow::Borrowed(without_mark(joined(answer, inside))),
            indent => {
                let text: String = inside.iter().map(|line| dedented(line, indent)).collect();
                Cow::Owned(without_mark(&text).to_owned())
            }
        };
        found.push(Block { text, python: opening.says_python(), closed: end.is_some() });
        at += 1 + end.map_or(body.len(), |end| end + 1);
    }
    found
}

fn without_mark(text: &str) -> &str {
    text.trim_start_matches('\u{feff}')
}

/// Lines of `text` that follow each other, as one.
fn joined<'a>(text: &'a str, lines: &[&'a str]) -> &'a str {
    let Some(first) = lines.first() else { return "" };
    let start = first.as_ptr() as usize - text.as_ptr() as usize;
    &text[start..start + lines.iter().map(|line| line.len()).sum::<usize>()]
}

/// The line that closes a block: the first fence that is not within a string of Python; without
/// such a one, as where a string is never closed, the first fence at all.
fn closing(opening: &Fence<'_>, body: &[&str], budget: &mut usize) -> Option<usize> {
    let mut reader = Reader::default();
    let (mut first, mut length) = (None, 0);
    for (index, line) in body.iter().enumerate() {
        if fence(line).is_some_and(|fence| fence.closes(opening)) {
            if !reader.is_in_string() && !reader.is_broken() {
                return Some(index);
            }
            first = first.or(Some(index));
        }
        length += line.len();
        let hopeless = reader.is_broken() || length > SOURCE_MAX || *budget < line.len();
        if hopeless && first.is_some() {
            return first;
        }
        if !hopeless {
            *budget -= line.len();
            reader.line(dedented(line, opening.indent));
        }
    }
    first
}

fn dedented(line: &str, indent: usize) -> &str {
    let blank = line.len() - line.trim_start_matches([' ', '\t']).len();
    &line[blank.min(indent)..]
}
