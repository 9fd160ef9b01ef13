//! How many threads this machine is best used with.

use std::collections::HashSet;
use std::path::Path;

/// The requested number of threads, or one per usable core: a second thread on a core only
/// slows the first one down.
pub fn threads(requested: Option<usize>) -> usize {
    let usable = || std::thread::available_parallelism().map_or(1, usize::from);
    requested.unwrap_or_else(|| {
        let cores = cores(Path::new("/sys/devices/system/cpu"));
        cores.map_or_else(usable, |n| n.min(usable())).min(tern_cpu::MAX_THREADS)
    })
}

/// Cores of this machine, however many threads each has; none if the system does not say.
fn cores(folder: &Path) -> Option<usize> {
    let siblings = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix("cpu")?.parse::<usize>().ok()?;
        std::fs::read_to_string(entry.path().join("topology/thread_siblings_list")).ok()
    };
    let all = std::fs::read_dir(folder).ok()?.flatten().filter_map(siblings);
    Some(all.collect::<HashSet<_>>().len()).filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_of_a_core_count_once() {
        let folder = tempfile::tempdir().unwrap();
        for (cpu, siblings) in
            [("cpu0", "0,2"), ("cpu1", "1,3"), ("cpu2", "0,2"), ("cpu3", "1,3"), ("cpufreq", "9")]
        {
            let topology = folder.path().join(cpu).join("topology");
            std::fs::create_dir_all(&topology).unwrap();
            std::fs::write(topology.join("thread_siblings_list"), siblings).unwrap();
        }
        assert_eq!(cores(folder.path()), Some(2));
        assert_eq!(cores(&folder.path().join("cpufreq/topology")), None);
        assert_eq!(threads(Some(5)), 5);
    }
}
