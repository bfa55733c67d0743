//! Durable appends from 8 producers: this log, SQLite (WAL, full sync) and sled on the same records.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use events::event::{Draft, Recorded, SCHEMA};
use events::ids::{Digest, RunId, Seq};
use events::log::Log;
use rusqlite::Connection;
use store::Home;

const PRODUCERS: u64 = 8;
const TIME: Duration = Duration::from_secs(4);

/// One of those that are compared: stores a batch durably before it returns.
type Append<'a> = dyn Fn(u64, usize) -> Result<()> + Sync + 'a;

/// Events a second of all producers together.
fn rate(size: u64, append: &Append<'_>) -> Result<f64> {
    let (next, begun) = (AtomicU64::new(0), Instant::now());
    let produce = || -> Result<()> {
        while begun.elapsed() < TIME {
            let first = next.fetch_add(size, Ordering::Relaxed);
            append(first, usize::try_from(size)?)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..PRODUCERS).map(|_| scope.spawn(produce)).collect();
        let ended = all.into_iter().map(|one| one.join().unwrap_or_else(|_| Ok(())));
        ended.collect::<Result<Vec<_>>>()
    })?;
    Ok(next.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
}

/// Measures all of them, one by one and in batches.
pub fn all(folder: &Path, mix: &[Draft]) -> Result<()> {
    let stored = stored(mix)?;
    println!("appends    8 producers, durable, events/s (this log hashes, chains and checks; the");
    println!("           others store the same bytes under a number)");
    println!(
        "           {:>6} {:>10} {:>10} {:>10} {:>10}",
        "batch", "this log", "SQLite, 1", "SQLite, 8", "sled"
    );
    for size in [1, 32, 256, 1024] {
        let ours = ours(&folder.join(format!("ours-{size}")), size, mix)?;
        let one = sqlite(&folder.join(format!("sqlite-1-{size}")), size, &stored, 1)?;
        let eight = sqlite(&folder.join(format!("sqlite-8-{size}")), size, &stored, PRODUCERS)?;
        let sled = of_sled(&folder.join(format!("sled-{size}")), size, &stored)?;
        println!("           {size:>6} {ours:>10.0} {one:>10.0} {eight:>10.0} {sled:>10.0}");
    }
    Ok(())
}

/// The bytes of the records as this log would store them.
fn stored(mix: &[Draft]) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for (seq, draft) in (1..).zip(mix.iter().cloned()) {
        let Draft { cause, actor, event } = draft;
        let (seq, at_unix_ms, previous) = (Seq(seq), 1_700_000_000_000, Digest::of(b"before"));
        let record = Recorded { seq, at_unix_ms, cause, actor, schema: SCHEMA, previous, event };
        let bytes = store::codec::encode(&record);
        all.push(bytes.map_err(|e| anyhow::anyhow!("{e:?}"))?);
    }
    Ok(all)
}

fn at<T>(all: &[T], number: u64) -> &T {
    &all[usize::try_from(number).unwrap_or(0) % all.len()]
}

fn ours(folder: &Path, size: u64, mix: &[Draft]) -> Result<f64> {
    let log = Home::open(folder)?.create_run(RunId::new(1, [0; 10]))?;
    let measured = rate(size, &|first, size| {
        let batch = (first..).take(size).map(|number| at(mix, number).clone()).collect();
        log.append(batch)?;
        Ok(())
    })?;
    drop(log);
    std::fs::remove_dir_all(folder)?;
    Ok(measured)
}

/// SQLite with as many connections as are said; each producer has one, or all share one.
fn sqlite(folder: &Path, size: u64, stored: &[Vec<u8>], connections: u64) -> Result<f64> {
    std::fs::create_dir_all(folder)?;
    let open = || -> Result<Mutex<Connection>> {
        let connection = Connection::open(folder.join("events.db"))?;
        connection.busy_timeout(Duration::from_secs(60))?;
        let mode: String =
            connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        anyhow::ensure!(mode == "wal", "no WAL");
        connection.execute_batch(
            "PRAGMA synchronous = FULL;
             CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY, record BLOB NOT NULL)",
        )?;
        Ok(Mutex::new(connection))
    };
    let all = (0..connections).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let turn = AtomicU64::new(0);
    let measured = rate(size, &|first, size| {
        let connection = at(&all, turn.fetch_add(1, Ordering::Relaxed));
        let mut connection = connection.lock().ok().context("a producer panicked")?;
        let whole =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut insert = whole.prepare_cached("INSERT INTO events VALUES (?1, ?2)")?;
            for number in (first..).take(size) {
                insert.execute((i64::try_from(number)?, at(stored, number)))?;
            }
        }
        whole.commit()?;
        Ok(())
    })?;
    drop(all);
    std::fs::remove_dir_all(folder)?;
    Ok(measured)
}

/// sled alone; its flush hands the bytes to the system, not to the device.
fn of_sled(folder: &Path, size: u64, stored: &[Vec<u8>]) -> Result<f64> {
    let db = sled::Config::new().path(folder).flush_every_ms(None).open()?;
    let measured = rate(size, &|first, size| {
        let mut batch = sled::Batch::default();
        for number in (first..).take(size) {
            batch.insert(&number.to_be_bytes(), at(stored, number).as_slice());
        }
        db.apply_batch(batch)?;
        db.flush()?;
        Ok(())
    })?;
    drop(db);
    std::fs::remove_dir_all(folder)?;
    Ok(measured)
}
