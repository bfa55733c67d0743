//! The options of commands that several processes may do together.

use std::time::Duration;

use policy::Result;
use policy::ranks::Ranks;

/// Which ranks.
#[derive(clap::Args)]
pub struct RankArgs {
    /// Devices to train on together, one process for each, such as cuda:0,cuda:1.
    #[arg(long, value_delimiter = ',')]
    pub ranks: Vec<String>,
    /// Seconds that a rank may be silent when it is waited for, before it counts as lost.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub rank_deadline: u64,
}

impl RankArgs {
    /// Starts the other ranks, or finds rank 0 if this process is one of them. Without `--ranks` there is
    /// one, on `device`.
    pub fn start(&self, device: &str) -> Result<Ranks> {
        let alone = [device.to_owned()];
        let devices = if self.ranks.is_empty() { &alone } else { &self.ranks[..] };
        Ranks::start(devices, Duration::from_secs(self.rank_deadline))
    }
}
