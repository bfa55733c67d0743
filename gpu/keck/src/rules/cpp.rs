//! C++ and CUDA text as tokens: comments, string contents and dead `#if 0` blocks are gone, so
//! that no word in them counts.

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// An identifier or keyword.
    Name(String),
    /// A string literal's content.
    Text(String),
    /// A number or character literal.
    Literal,
    /// Punctuation; `::`, `->`, `<<<`, `>>>` and `##` are one token each.
    Mark(&'static str),
    /// An include with the text between its delimiters.
    Include(String),
    /// The start of another directive, by name; its body follows as tokens.
    Directive(String),
}

const MARKS: [&str; 36] = [
    "<<<", ">>>", "::", "->", "##", "&&", "||", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%",
    "=", "<", ">", "!", "&", "|", "^", "~", "?", ":", ";", ",", ".", "(", ")", "[", "]", "{", "}",
    "#",
];

/// Splits text into tokens.
pub fn tokens(text: &str) -> Vec<Token> {
    let joined = text.replace("\\\r\n", "").replace("\\\n", "");
    let clean = without_comments(&joined);
    let mut found = Vec::new();
    let mut dead = 0usize;
    for line in clean.split('\n') {
        let trimmed = line.trim_start();
        if let Some(directive) = trimmed.strip_prefix('#') {
            let directive = directive.trim_start();
            let name: String = directive.chars().take_while(char::is_ascii_alphabetic).collect();
            let rest = directive[name.len()..].trim();
            if dead > 0 {
                match name.as_str() {
                    "if" | "ifdef" | "ifndef" => dead += 1,
                    "endif" => dead -= 1,
                    // What follows the other branch of `#if 0` is alive.
                    "else" | "elif" if dead == 1 => dead = 0,
                    _ => {}
                }
                continue;
            }
            if name == "if" && rest == "0" {
                dead = 1;
                continue;
            }
            if name == "include" {
                found.push(Token::Include(rest.trim_matches(['<', '>', '"', ' ']).to_owned()));
                continue;
            }
            found.push(Token::Directive(name));
            split(rest, &mut found);
        } else if dead == 0 {
            split(line, &mut found);
        }
    }
    found
}

/// Comments become spaces; strings stay, with line breaks inside raw ones made spaces.
fn without_comments(text: &str) -> String {
    let bytes: Vec<char> = text.chars().collect();
    let mut clean = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest.starts_with(&['/', '/']) {
            at += rest.iter().position(|c| *c == '\n').unwrap_or(rest.len());
        } else if rest.starts_with(&['/', '*']) {
            let end = rest.windows(2).skip(2).position(|w| w == ['*', '/']);
            at += end.map_or(rest.len(), |e| e + 4);
            clean.push(' ');
        } else if rest[0] == '"' || rest[0] == '\'' && !follows_digit(&clean) {
            let length = literal_length(rest);
            clean.extend(rest[..length].iter().map(|c| if *c == '\n' { ' ' } else { *c }));
            at += length;
        } else {
            clean.push(rest[0]);
            at += 1;
        }
    }
    clean
}

/// `1'000`: the quote separates digits.
fn follows_digit(text: &str) -> bool {
    text.chars().next_back().is_some_and(|c| c.is_ascii_hexdigit())
}

fn literal_length(rest: &[char]) -> usize {
    let quote = rest[0];
    let mut at = 1;
    while at < rest.len() && rest[at] != quote && rest[at] != '\n' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn split(line: &str, found: &mut Vec<Token>) {
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        if first.is_alphabetic() || first == '_' {
            let length =
                rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            found.push(Token::Name(rest[..length].to_owned()));
            rest = &rest[length..];
        } else if first.is_ascii_digit() {
            let length = rest
                .find(|c: char| !(c.is_alphanumeric() || c == '.' || c == '\''))
                .unwrap_or(rest.len());
            found.push(Token::Literal);
            rest = &rest[length..];
        } else if first == '"' || first == '\'' {
            let chars: Vec<char> = rest.chars().collect();
            let length: usize = chars[..literal_length(&chars)].iter().map(|c| c.len_utf8()).sum();
            let content = rest[..length].trim_matches(first).to_owned();
            found.push(if first == '"' { Token::Text(content) } else { Token::Literal });
            rest = &rest[length..];
        } else if let Some(mark) = MARKS.iter().find(|m| rest.starts_with(**m)) {
            found.push(Token::Mark(mark));
            rest = &rest[mark.len()..];
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let name = |t| if let Token::Name(n) = t { Some(n) } else { None };
        tokens(text).into_iter().filter_map(name).collect()
    }

    #[test]
    fn words_in_comments_and_strings_do_not_count() {
        let text = "// cublas\nint a; /* at::relu\n more */ const char* s = \"system(\\\"x\\\")\";\n#if 0\nbad\n#else\ngood\n#endif\nend";
        assert_eq!(names(text), ["int", "a", "const", "char", "s", "good", "end"]);
    }

    #[test]
    fn spliced_lines_are_one() {
        assert_eq!(names("at::re\\\nlu"), ["at", "relu"]);
        assert!(tokens("#define G(a,b) a##b").contains(&Token::Mark("##")));
        assert!(tokens("k<<<1, 2>>>(x)").contains(&Token::Mark("<<<")));
    }
}
