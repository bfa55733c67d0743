//! Text of a log, a blob or a program on a terminal: what would move its cursor, change its colours or
//! turn its lines around is written as an escape, so that no text can look like what it is not.

fn is_harmless(character: char) -> bool {
    let turns = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !character.is_control() && !turns
}

fn escaped(text: &str, kept: &[char]) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_harmless(character) || kept.contains(&character) {
            shown.push(character);
        } else {
            shown.extend(character.escape_default());
        }
    }
    shown
}

/// For one line: a newline is an escape, too.
pub fn line(text: &str) -> String {
    escaped(text, &[])
}

/// For several lines, such as code.
pub fn lines(text: &str) -> String {
    escaped(text, &['\n', '\t'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_the_cursor_is_written_out_and_the_rest_stays() {
        let text = "ü\t→ \u{1b}[2J\n\u{9b}1m\u{202e}\r\u{7f}";
        assert_eq!(line(text), "ü\\t→ \\u{1b}[2J\\n\\u{9b}1m\\u{202e}\\r\\u{7f}");
        assert_eq!(lines(text), "ü\t→ \\u{1b}[2J\n\\u{9b}1m\\u{202e}\\r\\u{7f}");
    }
}
