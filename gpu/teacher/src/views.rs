//! Views of inputs: how a chain of views turns into one load and one input shape.

/// One step from an input towards the row `[M, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `[H, 1, W]` to `[H, W]`.
    Squeeze,
    /// Swaps the axes.
    Swap,
    /// Reverses the columns.
    Flip,
    /// Rotates the columns.
    Roll(usize),
    /// Keeps columns from a start, out of that many more.
    Narrow(usize, usize),
    /// Zeros before the columns.
    Pad(usize),
    /// The first (0) or second (1) half of the columns.
    Half(usize),
    /// The first (0) or second (1) piece of a concatenation.
    Piece(usize),
}

/// A text with its place in a product or sum already safe.
fn atom(text: &str) -> String {
    if text.contains(' ') { format!("({text})") } else { text.to_owned() }
}

/// One load with its mask, for the row `[M, N]` seen through `steps` (input first).
pub fn load(input: &str, steps: &[Step]) -> String {
    let (mut row, mut col) = ("row".to_owned(), "cols".to_owned());
    let (mut high, mut wide) = ("M".to_owned(), "N".to_owned());
    let mut mask = "mask".to_owned();
    for step in steps.iter().rev() {
        match step {
            Step::Squeeze => {}
            Step::Swap => {
                std::mem::swap(&mut row, &mut col);
                std::mem::swap(&mut high, &mut wide);
            }
            Step::Flip => col = format!("{wide} - 1 - {}", atom(&col)),
            Step::Roll(k) => col = format!("({col} + {wide} - {k}) % {}", atom(&wide)),
            Step::Narrow(start, extra) => {
                if *start > 0 {
                    col = format!("{start} + {col}");
                }
                wide = format!("{wide} + {extra}");
            }
            Step::Pad(k) => {
                mask = format!("{mask} & ({col} >= {k})");
                col = format!("{col} - {k}");
                wide = format!("{wide} - {k}");
            }
            Step::Half(i) => {
                if *i == 1 {
                    col = format!("{wide} + {col}");
                }
                wide = format!("{} * 2", atom(&wide));
            }
            Step::Piece(i) => {
                let half = format!("{} // 2", atom(&wide));
                if *i == 0 {
                    mask = format!("{mask} & ({col} < {half})");
                } else {
                    mask = format!("{mask} & ({col} >= {half})");
                    col = format!("{col} - {half}");
                }
                wide = half;
            }
        }
    }
    format!(
        "tl.load({input}_ptr + {} * {} + {col}, mask={mask}, other=0.0)",
        atom(&row),
        atom(&wide)
    )
}

/// The shape of the input that `steps` turn into `[m, n]`.
pub fn shape(steps: &[Step], m: usize, n: usize) -> Vec<usize> {
    let (mut high, mut wide) = (m, n);
    let mut three = false;
    for step in steps.iter().rev() {
        match step {
            Step::Squeeze => three = true,
            Step::Swap => std::mem::swap(&mut high, &mut wide),
            Step::Flip | Step::Roll(_) => {}
            Step::Narrow(_, extra) => wide += extra,
            Step::Pad(k) => wide -= k,
            Step::Half(_) => wide *= 2,
            Step::Piece(_) => wide /= 2,
        }
    }
    if three { vec![high, 1, wide] } else { vec![high, wide] }
}

/// The statement that finds `M, N` from the input.
pub fn dims(input: &str, steps: &[Step]) -> String {
    let plain: Vec<_> = steps.iter().filter(|s| !matches!(s, Step::Flip | Step::Roll(_))).collect();
    if plain.is_empty() {
        return format!("M, N = {input}.shape");
    }
    if plain == [&Step::Swap] {
        return format!("N, M = {input}.shape");
    }
    let last = if plain.contains(&&Step::Squeeze) { 2 } else { 1 };
    let mut high = format!("{input}.shape[0]");
    let mut wide = format!("{input}.shape[{last}]");
    for step in plain {
        match step {
            Step::Squeeze | Step::Flip | Step::Roll(_) => {}
            Step::Swap => std::mem::swap(&mut high, &mut wide),
            Step::Narrow(_, extra) => wide = format!("{wide} - {extra}"),
            Step::Pad(k) => wide = format!("{wide} + {k}"),
            Step::Half(_) => wide = format!("{} // 2", atom(&wide)),
            Step::Piece(_) => wide = format!("{} * 2", atom(&wide)),
        }
    }
    format!("M, N = {high}, {wide}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_load() {
        assert_eq!(load("x", &[]), "tl.load(x_ptr + row * N + cols, mask=mask, other=0.0)");
    }

    #[test]
    fn swapped_load() {
        let steps = [Step::Swap];
        assert_eq!(load("x", &steps), "tl.load(x_ptr + cols * M + row, mask=mask, other=0.0)");
        assert_eq!(shape(&steps, 4, 32), [32, 4]);
        assert_eq!(dims("x", &steps), "N, M = x.shape");
    }

    #[test]
    fn second_half() {
        let steps = [Step::Half(1)];
        let text = "tl.load(x_ptr + row * (N * 2) + N + cols, mask=mask, other=0.0)";
        assert_eq!(load("x", &steps), text);
        assert_eq!(dims("x", &steps), "M, N = x.shape[0], x.shape[1] // 2");
    }
}
