//! Memory available to this process: the machine's, within the limits of its control groups and its own.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Total and free bytes; unlimited if unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    /// Bytes in total.
    pub total: u64,
    /// Bytes that can be allocated.
    pub free: u64,
}

impl FreeMemory {
    /// The current state.
    pub fn now() -> FreeMemory {
        FreeMemory::below(Path::new("/"))
    }

    /// The same from the files below a folder.
    fn below(root: &Path) -> FreeMemory {
        let info = read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let kib = |name: &str| kib(&info, name).unwrap_or(u64::MAX);
        let mut memory = FreeMemory { total: kib("MemTotal:"), free: kib("MemAvailable:") };
        let groups = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        for (folder, files) in groups.lines().flat_map(|line| folders(root, line)) {
            memory.limit(files.limit_and_use(&folder));
        }
        memory.limit(address_space(root));
        memory
    }

    /// Applies a limit, given how much of it is used.
    fn limit(&mut self, limit: Option<(u64, u64)>) {
        let Some((limit, used)) = limit else { return };
        self.total = self.total.min(limit);
        self.free = self.free.min(limit.saturating_sub(used));
    }
}

/// File names of a control group.
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    /// Lines of `memory.stat` with memory that the system reclaims when it is short: file pages.
    cached: [&'static str; 2],
}

/// Control groups of version 2, and of version 1.
static UNIFIED: GroupFiles =
    GroupFiles { limit: "memory.max", used: "memory.current", cached: ["inactive_file ", "active_file "] };
static SEPARATE: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file ", "total_active_file "],
};

impl GroupFiles {
    /// `None` if there is no limit.
    fn limit_and_use(&self, folder: &Path) -> Option<(u64, u64)> {
        let read = |name: &str| read_to_string(folder.join(name)).ok();
        let limit = read(self.limit)?.trim().parse().ok()?; // "max" is none
        let used: u64 = read(self.used).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let stat = read("memory.stat").unwrap_or_default();
        let field = |name: &str| stat.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok());
        let cached = self.cached.into_iter().filter_map(field).fold(0, u64::saturating_add);
        Some((limit, used.saturating_sub(cached)))
    }
}

/// The folders of the group in a line of `/proc/self/cgroup`, and of all its parents, each of which limits
/// its children: `0::/user.slice/a.scope`, or `9:memory:/docker/4242`
fn folders(root: &Path, line: &str) -> Vec<(PathBuf, &'static GroupFiles)> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
        return vec![];
    };
    let (mount, files) = match controllers {
        "" => ("sys/fs/cgroup", &UNIFIED),
        names if names.split(',').any(|name| name == "memory") => ("sys/fs/cgroup/memory", &SEPARATE),
        _ => return vec![],
    };
    // a container may see its own group as the root, but the host's name for it
    let inside = Path::new(path.trim_start_matches('/'));
    inside.ancestors().map(|part| (root.join(mount).join(part), files)).collect()
}

/// The limit of the address space (`ulimit -v`), and how much of it is used.
fn address_space(root: &Path) -> Option<(u64, u64)> {
    let limits = read_to_string(root.join("proc/self/limits")).ok()?;
    let line = limits.lines().find_map(|l| l.strip_prefix("Max address space"))?;
    let limit = line.split_ascii_whitespace().next()?.parse().ok()?; // "unlimited" is none
    let status = read_to_string(root.join("proc/self/status")).unwrap_or_default();
    Some((limit, kib(&status, "VmSize:").unwrap_or(0)))
}

/// The bytes in a line like `MemTotal:  1024 kB`
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of a machine with 1000 KiB, 800 KiB of them free, and these files.
    fn memory(files: &[(&str, &str)]) -> (u64, u64) {
        let root = tempfile::tempdir().unwrap();
        let info = ("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    800 kB\n");
        for (path, text) in files.iter().chain([&info]) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let memory = FreeMemory::below(root.path());
        (memory.total / 1024, memory.free / 1024)
    }

    #[test]
    fn the_machine_is_the_limit_where_no_group_is() {
        assert_eq!(memory(&[]), (1000, 800));
        let none = [("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "max\n")];
        assert_eq!(memory(&none), (1000, 800));
        let empty = FreeMemory::below(Path::new("/nowhere"));
        assert_eq!((empty.total, empty.free), (u64::MAX, u64::MAX));
    }

    #[test]
    fn the_tightest_group_counts_and_pages_of_files_do_not() {
        let group = ("proc/self/cgroup", "0::/outer/inner\n");
        let outer = [
            ("sys/fs/cgroup/outer/memory.max", "512000\n"),
            ("sys/fs/cgroup/outer/memory.current", "204800\n"),
        ];
        assert_eq!(memory(&[&[group][..], &outer].concat()), (500, 300));
        let inner = [
            ("sys/fs/cgroup/outer/inner/memory.max", "307200\n"),
            ("sys/fs/cgroup/outer/inner/memory.current", "204800\n"),
            ("sys/fs/cgroup/outer/inner/memory.stat", "anon 1\ninactive_file 51200\nactive_file 102400\n"),
        ];
        assert_eq!(memory(&[&[group][..], &outer, &inner].concat()), (300, 250));
    }

    #[test]
    fn a_container_finds_its_group_at_the_root() {
        let files = [
            ("proc/self/cgroup", "0::/kubepods/pod42\n"),
            ("sys/fs/cgroup/memory.max", "102400\n"),
            ("sys/fs/cgroup/memory.current", "51200\n"),
        ];
        assert_eq!(memory(&files), (100, 50));
    }

    #[test]
    fn separate_controllers_and_limits_of_the_process_count() {
        let files = [
            ("proc/self/cgroup", "12:cpu,cpuacct:/x\n9:memory:/docker/4242\n0::/\n"),
            ("sys/fs/cgroup/memory/docker/4242/memory.limit_in_bytes", "409600\n"),
            ("sys/fs/cgroup/memory/docker/4242/memory.usage_in_bytes", "102400\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(memory(&files), (400, 300));
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax address space  204800  unlimited  bytes\n";
        let process =
            [("proc/self/limits", limits), ("proc/self/status", "VmPeak: 9 kB\nVmSize:\t   150 kB\n")];
        assert_eq!(memory(&[&files[..], &process].concat()), (200, 50));
    }
}
