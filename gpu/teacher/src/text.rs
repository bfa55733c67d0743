//! Small text helpers: placeholder filling and the masked-reduction macros.

/// Replaces the placeholders of a template.
pub fn fill(template: &str, args: &[(&str, &str)]) -> String {
    let mut text = template.to_owned();
    // Twice, since a chosen constant may itself hold operand placeholders.
    for _ in 0..2 {
        for (key, value) in args {
            text = text.replace(key, value);
        }
    }
    text
}

/// Expands `SUM(..)`, `MAX(..)` and `MIN(..)` to reductions over the valid columns.
pub fn expand(text: &str) -> String {
    let mut out = text.to_owned();
    for (name, func, pad) in [
        ("SUM(", "tl.sum", "0.0"),
        ("MAX(", "tl.max", "-float(\"inf\")"),
        ("MIN(", "tl.min", "float(\"inf\")"),
    ] {
        while let Some(start) = out.find(name) {
            let open = start + name.len();
            let close = closing(&out, open);
            let inner = out[open..close].to_owned();
            let new = format!("{func}(tl.where(mask, {inner}, {pad}), axis=0)");
            out.replace_range(start..=close, &new);
        }
    }
    out
}

/// Index of the parenthesis that closes the one just before `from`.
fn closing(text: &str, from: usize) -> usize {
    let mut depth = 1;
    for (i, c) in text.bytes().enumerate().skip(from) {
        match c {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    text.len() - 1
}

/// Whether `word` occurs in `text` as a whole identifier.
pub fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

/// The text with every number replaced by `#`.
pub fn no_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut prev = ' ';
    let mut inside = false;
    for c in text.chars() {
        let starts = c.is_ascii_digit() && !prev.is_alphanumeric() && prev != '_';
        if starts && !inside {
            out.push('#');
            inside = true;
        } else if inside && (c.is_ascii_digit() || c == '.') {
            // Within the number.
        } else {
            inside = false;
            out.push(c);
        }
        prev = c;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macros_expand() {
        assert_eq!(
            expand("a = SUM(f(b) * c) / N"),
            "a = tl.sum(tl.where(mask, f(b) * c, 0.0), axis=0) / N"
        );
    }

    #[test]
    fn numbers_go() {
        assert_eq!(no_numbers("b = a * 0.5 + x2"), "b = a * # + x2");
    }
}
