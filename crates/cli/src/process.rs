//! What a server needs of its process: descriptors for connections, and freed memory that goes back to the system.

/// Descriptors beside those of connections: `/health` beyond the limit, the model, logs, the runtime.
const OTHER_DESCRIPTORS: usize = 256;

/// Raises the limit of open files towards what `connections` need, and gives back how many of them fit.
pub(crate) fn room_for(connections: usize) -> usize {
    let want = connections.saturating_add(OTHER_DESCRIPTORS) as libc::rlim_t;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a local value of the right type.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return connections;
    }
    if limit.rlim_cur < want {
        let raised = libc::rlimit { rlim_cur: want.min(limit.rlim_max), ..limit };
        // SAFETY: as above.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } == 0 {
            limit = raised;
        }
    }
    let room = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX).saturating_sub(OTHER_DESCRIPTORS);
    connections.min(room.max(1))
}

/// Has large blocks go back to the system as soon as they are freed.
///
/// glibc raises the size from which a block has a mapping of its own up to 32 MiB, each time such a block is freed;
/// later ones then lie in the arenas of the threads that read bodies, and stay there.
pub(crate) fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (parameter, bytes) in [(libc::M_MMAP_THRESHOLD, 256 << 10), (libc::M_TRIM_THRESHOLD, 1 << 20)] {
        // SAFETY: sets a number of the allocator, which locks; without effect if it is refused.
        unsafe { libc::mallopt(parameter, bytes) };
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn connections_fit_the_limit_of_open_files() {
        assert_eq!(super::room_for(1), 1);
        let room = super::room_for(usize::MAX);
        assert!((1..usize::MAX).contains(&room), "{room}");
    }
}
