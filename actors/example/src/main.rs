//! `kernelzero attach RUN --name curriculum -- curriculum 0.75 5`

use std::io::{Error, stdin, stdout};

use curriculum::Curriculum;

fn main() -> Result<(), Error> {
    let usage = || Error::other("give a share of valid modules and most APIs, as in: 0.75 5");
    let mut arguments = std::env::args().skip(1);
    let enough = arguments.next().and_then(|text| text.parse().ok()).ok_or_else(usage)?;
    let most = arguments.next().and_then(|text| text.parse().ok()).ok_or_else(usage)?;
    let mut actor = Curriculum::new(enough, most);
    let ended = actors::attached::drive(&mut actor, &mut stdin().lock(), &mut stdout().lock());
    for why in &actor.refused {
        eprintln!("refused: {why}");
    }
    ended
}
