//! Reading Python as far as strings, comments, brackets and lines go: enough to know whether a
//! text can be a Python file and what it defines at its top level.

/// What a text is, read as Python.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reader {
    /// Open string, if any.
    string: Option<Quote>,
    brackets: i64,
    /// The next line goes on with this one.
    goes_on: bool,
    broken: bool,
}

/// Which bytes mean nothing to a reader, in strings or outside.
static PLAIN: [bool; 256] = plain();

const fn plain() -> [bool; 256] {
    let (mut plain, meant) = ([true; 256], b"#\\\"'()[]{}`$?");
    let mut at = 0;
    while at < meant.len() {
        plain[meant[at] as usize] = false;
        at += 1;
    }
    plain
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quote {
    mark: u8,
    triple: bool,
}

/// Whether a text can be Python and defines a class, or gives something the name, at its top level.
pub(super) fn is_file_with(text: &str, name: &str) -> bool {
    let mut reader = Reader::default();
    let mut found = false;
    for line in text.split_inclusive('\n') {
        found |= reader.at_statement() && defines(line, name);
        reader.line(line);
        if reader.broken {
            return false;
        }
    }
    found && reader.is_whole()
}

/// `class NAME(…` or `NAME = …` in the first column.
fn defines(line: &str, name: &str) -> bool {
    let (class, rest) = match line.strip_prefix("class") {
        Some(rest) if rest.starts_with([' ', '\t']) => (true, rest.trim_start_matches([' ', '\t'])),
        _ => (false, line),
    };
    let Some(after) = rest.strip_prefix(name) else { return false };
    let after = after.trim_start_matches([' ', '\t']);
    if class {
        return after.starts_with(['(', ':', '[']);
    }
    after.starts_with('=') && !after.starts_with("==")
}

impl Reader {
    /// Whether everything that was opened is closed.
    pub fn is_whole(&self) -> bool {
        !self.broken && self.string.is_none() && self.brackets == 0 && !self.goes_on
    }

    /// Whether a string is open.
    pub fn is_in_string(&self) -> bool {
        self.string.is_some()
    }

    /// Whether the text so far cannot be Python, whatever follows.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    fn at_statement(&self) -> bool {
        self.is_whole()
    }

    /// Takes one line with its end.
    pub fn line(&mut self, line: &str) {
        let line = line.trim_end_matches(['\n', '\r']).as_bytes();
        // Three signs of bitwise negation are a fence rather than a thought of Python's.
        self.broken |= self.at_statement() && line.trim_ascii_start().starts_with(b"~~~");
        self.goes_on = false;
        let mut at = 0;
        while at < line.len() && !self.broken {
            // What is neither the end of a string nor the beginning of anything.
            if PLAIN[usize::from(line[at])] {
                at += 1;
                continue;
            }
            at = match self.string {
                Some(quote) => self.inside(quote, line, at),
                None => self.outside(line, at),
            };
        }
        // A string in simple quotes ends with its line unless that ends with a backslash.
        if self.string.is_some_and(|quote| !quote.triple) && !self.goes_on {
            self.broken = true;
        }
    }

    fn inside(&mut self, quote: Quote, line: &[u8], at: usize) -> usize {
        match line[at] {
            b'\\' => {
                self.goes_on = at + 1 == line.len() && !quote.triple;
                at + 2
            }
            mark if mark == quote.mark && !quote.triple => {
                self.string = None;
                at + 1
            }
            mark if mark == quote.mark && line[at..].starts_with(&[mark; 3]) => {
                self.string = None;
                at + 3
            }
            _ => at + 1,
        }
    }

    fn outside(&mut self, line: &[u8], at: usize) -> usize {
        match line[at] {
            b'#' => return line.len(),
            b'\\' => {
                self.goes_on = at + 1 == line.len();
                self.broken = !self.goes_on;
            }
            mark @ (b'"' | b'\'') => {
                let triple = line[at..].starts_with(&[mark; 3]);
                self.string = Some(Quote { mark, triple });
                return at + if triple { 3 } else { 1 };
            }
            b'(' | b'[' | b'{' => self.brackets += 1,
            b')' | b']' | b'}' => {
                self.brackets -= 1;
                self.broken = self.brackets < 0;
            }
            // No part of any of Python's tokens.
            b'`' | b'$' | b'?' => self.broken = true,
            _ => {}
        }
        at + 1
    }
}
