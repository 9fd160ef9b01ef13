//! Signals that ask the process to end.

/// The first SIGTERM or Ctrl-C; a second one ends the process at once.
#[cfg(unix)]
pub(crate) async fn stop() {
    use tokio::signal::unix::{SignalKind, signal};

    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await; // without handlers the signals end the process
    };
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        std::process::exit(130);
    });
}

/// The first Ctrl-C; a second one ends the process at once.
#[cfg(not(unix))]
pub(crate) async fn stop() {
    if tokio::signal::ctrl_c().await.is_err() {
        return std::future::pending().await; // without a handler it ends the process
    }
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(130);
        }
    });
}
