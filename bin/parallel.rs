//! Independent pieces of work on several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, anyhow};

/// Does `act` for each of `0..count` on `workers` threads; the results in order.
///
/// # Errors
/// The first error; what is under way is finished, nothing new is begun.
pub fn parallel<T: Send>(
    workers: usize,
    count: usize,
    act: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    let work = || -> Result<()> {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= count {
                return Ok(());
            }
            let result = act(place).inspect_err(|_| next.store(count, Ordering::Relaxed))?;
            done.lock().map_err(|_| anyhow!("another worker failed"))?.push((place, result));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers.max(1)).map(|_| scope.spawn(work)).collect();
        let panicked = || Err(anyhow!("a worker ended without a result"));
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| panicked()))
    })?;
    let mut done = done.into_inner().map_err(|_| anyhow!("a worker failed"))?;
    done.sort_by_key(|(place, _)| *place);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}
