//! Where the command keeps its files, from the environment: the configuration and the state of the user.

use std::path::PathBuf;

/// The folder of configuration, `~/.config/tern`.
pub(crate) fn config() -> Option<PathBuf> {
    folder("XDG_CONFIG_HOME", ".config")
}

/// The folder of state, `~/.local/state/tern`.
pub(crate) fn state() -> Option<PathBuf> {
    folder("XDG_STATE_HOME", ".local/state")
}

/// A relative path in a variable counts as unset, as the XDG specification says.
fn folder(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)));
    base.map(|base| base.join("tern"))
}
