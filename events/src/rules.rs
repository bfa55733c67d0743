//! What must follow: pure decisions over events and state. Nothing here reads a clock, a random
//! source, a file or anything of unstable order, so `audit` can decide again and compare.

pub mod api_table;
pub mod audit;
pub mod control;
pub mod extract;
pub mod intent;
pub mod prompt;
pub mod rescore;
pub mod retention;
pub mod reward;
pub mod score;
pub mod speed;
pub mod taint;
pub mod validity;
pub mod verdict;
pub mod work;
