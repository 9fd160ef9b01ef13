//! Process limits of a server: file descriptors for connections, and returning freed memory to the system.

/// Descriptors for purposes other than connections: `/health` beyond the limit, the model, logs, the runtime.
const OTHER_DESCRIPTORS: usize = 256;

/// Raises the limit of open files for `connections` connections, and returns how many are possible.
pub(crate) fn raise_open_files(connections: usize) -> usize {
    let needed = connections.saturating_add(OTHER_DESCRIPTORS) as libc::rlim_t;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a local value of the right type.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return connections;
    }
    if limit.rlim_cur < needed {
        let raised = libc::rlimit { rlim_cur: needed.min(limit.rlim_max), ..limit };
        // SAFETY: as above.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } == 0 {
            limit = raised;
        }
    }
    let available = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX).saturating_sub(OTHER_DESCRIPTORS);
    connections.min(available.max(1))
}

/// Returns large blocks to the system as soon as they are freed.
///
/// When a mapped block is freed, glibc raises the size above which blocks are mapped, up to 32 MiB; later
/// blocks then stay in the arenas of the threads that read request bodies.
pub(crate) fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (parameter, bytes) in [(libc::M_MMAP_THRESHOLD, 256 << 10), (libc::M_TRIM_THRESHOLD, 1 << 20)] {
        // SAFETY: sets an allocator parameter under its lock; a failure has no effect.
        unsafe { libc::mallopt(parameter, bytes) };
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn connections_fit_the_limit_of_open_files() {
        assert_eq!(super::raise_open_files(1), 1);
        let available = super::raise_open_files(usize::MAX);
        assert!((1..usize::MAX).contains(&available), "{available}");
    }
}
