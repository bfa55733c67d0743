//! Ranks as threads over pairs of sockets; NCCL where there is none.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use collective::{Error, Loss, Star, nccl};

const DEADLINE: Duration = Duration::from_millis(400);

/// Runs `f` as each of `world` ranks; answers what they answer.
fn ranks<T: Send>(world: usize, f: impl Fn(&mut Star) -> T + Sync) -> Vec<T> {
    let pairs: Vec<_> = (1..world).map(|_| UnixStream::pair().unwrap()).collect();
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    std::thread::scope(|scope| {
        let f = &f;
        let others: Vec<_> = theirs
            .into_iter()
            .zip(1..)
            .map(|(socket, rank)| {
                scope.spawn(move || f(&mut Star::spoke(rank, world, socket, DEADLINE).unwrap()))
            })
            .collect();
        let ours = ours.into_iter().map(|socket| (socket, None)).collect();
        let first = f(&mut Star::hub(ours, DEADLINE).unwrap());
        std::iter::once(first).chain(others.into_iter().map(|t| t.join().unwrap())).collect()
    })
}

#[test]
fn everyone_hears_everyone_in_order() {
    for world in 1..6 {
        let heard = ranks(world, |star| {
            let mut all = Vec::new();
            for turn in 0..50_usize {
                let own = vec![star.rank() as u8; (turn * turn) % 300 * star.rank()];
                all.push(star.exchange(&own).unwrap());
            }
            all
        });
        for all in &heard {
            assert_eq!(all, &heard[0]);
            for (turn, frames) in all.iter().enumerate() {
                let lengths: Vec<usize> = frames.iter().map(Vec::len).collect();
                let wanted: Vec<usize> = (0..world).map(|r| turn * turn % 300 * r).collect();
                assert_eq!(lengths, wanted);
            }
        }
    }
}

#[test]
fn what_is_told_is_heard_and_bytes_go_both_ways() {
    let found = ranks(3, |star| match star.rank() {
        0 => {
            star.tell(b"to all").unwrap();
            star.order(2, b"to two").unwrap();
            let mut large = vec![0; 1 << 22];
            star.receive(2, &mut large).unwrap();
            star.send(1, &large).unwrap();
            large
        }
        rank => {
            assert_eq!(star.hear().unwrap().unwrap(), b"to all");
            if rank == 2 {
                assert_eq!(star.hear().unwrap().unwrap(), b"to two");
                let large: Vec<u8> = (0..1_u32 << 22).map(|i| (i % 251) as u8).collect();
                star.send(0, &large).unwrap();
                return large;
            }
            let mut large = vec![0; 1 << 22];
            star.receive(0, &mut large).unwrap();
            large
        }
    });
    assert!(found.iter().all(|large| large == &found[0] && large[250] == 250));
}

#[track_caller]
fn lost<T: std::fmt::Debug>(found: Result<T, Error>, wanted: usize) -> Loss {
    match found {
        Err(Error::Lost { rank, problem }) if rank == wanted => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_has_ended_is_named_at_once_even_while_another_is_waited_for() {
    let began = Instant::now();
    let seen = ranks(3, |star| match star.rank() {
        0 => Some((star.exchange(b""), began.elapsed())),
        // Rank 2 ends, rank 1 is slow: rank 0 waits for rank 1 first.
        1 => {
            std::thread::sleep(DEADLINE / 2);
            let _ = star.exchange(b"");
            None
        }
        _ => None,
    });
    let (found, after) = seen.into_iter().flatten().next().unwrap();
    assert_eq!(lost(found, 2), Loss::Ended(None));
    assert!(after < DEADLINE / 2, "{after:?}");
}

#[test]
fn who_is_silent_is_named_after_the_deadline_and_an_ended_rank_0_is_no_error_when_idle() {
    ranks(2, |star| match star.rank() {
        0 => {
            assert_eq!(lost(star.exchange(b""), 1), Loss::Silent);
            star.watch().unwrap();
        }
        _ => {
            std::thread::sleep(DEADLINE * 2);
            assert!(star.watch().is_err() || star.hear().unwrap().is_none());
        }
    });
    ranks(2, |star| match star.rank() {
        0 => {}
        _ => assert!(star.hear().unwrap().is_none()),
    });
}

#[test]
fn who_speaks_something_else_is_no_rank() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let other = std::thread::spawn(move || {
        use std::io::Write;
        let mut theirs = theirs;
        theirs.write_all(&5_u64.to_le_bytes()).and_then(|()| theirs.write_all(b"hello")).unwrap();
        theirs
    });
    let error = Star::hub(vec![(ours, None)], DEADLINE).err().unwrap().to_string();
    assert!(error.contains("hello"), "{error}");
    drop(other.join());
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut &theirs, &u64::MAX.to_le_bytes()).unwrap();
    assert!(matches!(Star::hub(vec![(ours, None)], DEADLINE), Err(Error::Lost { rank: 1, .. })));
}

#[test]
fn nccl_that_is_not_there_has_a_name() {
    // Nothing of these tests links libtorch, which would bring it.
    let Err(Error::NoNccl(name)) = nccl::version() else { panic!("who has loaded NCCL?") };
    assert_eq!(name, "ncclGetVersion");
    assert!(nccl::unique_id().unwrap_err().to_string().contains("libnccl.so.2"));
}
