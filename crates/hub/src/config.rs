//! Settings: cache folders and how models are downloaded.

use std::path::{Path, PathBuf};

use crate::HubError;

/// The hub's public address.
const ENDPOINT: &str = "https://huggingface.co";

/// Settings of this crate. The caller builds it; nothing here reads the environment.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// The Hugging Face hub cache, shared with other tools.
    pub hub_cache: PathBuf,
    /// Tern's own folder, for models extracted from packages.
    pub models: PathBuf,
    /// The hub's address, without a trailing slash.
    pub endpoint: String,
    /// The hub token; sent only to `endpoint`.
    pub token: Option<String>,
    /// A file with the token, read when a request is sent and `token` is not set.
    pub token_file: Option<PathBuf>,
    /// The address of an HTTP proxy.
    pub proxy: Option<String>,
    /// Offline mode: never download.
    pub offline: bool,
    /// The Python that has pip.
    pub python: String,
    /// The npm program.
    pub npm: String,
    /// The tar program.
    pub tar: String,
}

// Written by hand: a token must not appear in a log.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("hub_cache", &self.hub_cache)
            .field("models", &self.models)
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "(set)"))
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Settings from the environment variables of the hub's own tools, read through `lookup`: HF_HUB_CACHE,
    /// else HF_HOME, else XDG_CACHE_HOME, else HOME; HF_TOKEN, HF_TOKEN_PATH, HF_ENDPOINT, HF_HUB_OFFLINE,
    /// HTTPS_PROXY. An empty variable counts as unset.
    ///
    /// ```
    /// let config = tern_hub::Config::from_env(|name| match name {
    ///     "HOME" => Some("/home/ada".to_string()),
    ///     "HF_HOME" => Some("/data/hf".to_string()),
    ///     _ => None,
    /// })?;
    /// assert_eq!(config.hub_cache, std::path::Path::new("/data/hf/hub"));
    /// assert_eq!(config.models, std::path::Path::new("/home/ada/.cache/tern/models"));
    /// # Ok::<(), tern_hub::HubError>(())
    /// ```
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Config, HubError> {
        let get = |name: &str| lookup(name).map(|v| v.trim().to_string()).filter(|v| !v.is_empty());
        let home = get("HOME").or_else(|| get("USERPROFILE")).map(PathBuf::from);
        let folder = |name: &str| get(name).map(|v| expand(&v, home.as_deref()));
        let caches = folder("XDG_CACHE_HOME").or_else(|| home.as_ref().map(|h| h.join(".cache")));
        let hf_home = folder("HF_HOME").or_else(|| caches.as_ref().map(|c| c.join("huggingface")));
        let hub_cache = folder("HF_HUB_CACHE")
            .or_else(|| hf_home.as_ref().map(|h| h.join("hub")))
            .ok_or(HubError::NoFolder)?;
        let models = caches.unwrap_or_else(|| hub_cache.clone()).join("tern").join("models");
        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_string());
        Ok(Config {
            models,
            endpoint: endpoint.trim_end_matches('/').to_string(),
            token: get("HF_TOKEN"),
            token_file: folder("HF_TOKEN_PATH").or_else(|| hf_home.map(|h| h.join("token"))),
            proxy: ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"].into_iter().find_map(get),
            offline: get("HF_HUB_OFFLINE").is_some_and(|v| is_true(&v)),
            python: "python3".to_string(),
            npm: "npm".to_string(),
            tar: "tar".to_string(),
            hub_cache,
        })
    }
}

/// Expands `~/x`; other paths are unchanged.
fn expand(value: &str, home: Option<&Path>) -> PathBuf {
    match (value.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(value),
    }
}

/// The values that the hub's own tools accept as true.
fn is_true(value: &str) -> bool {
    ["1", "true", "yes", "on"].iter().any(|t| value.eq_ignore_ascii_case(t))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vars: &[(&str, &str)]) -> Result<Config, HubError> {
        Config::from_env(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn the_more_specific_variable_wins() {
        let all = [("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/d")];
        let want = ["/a", "/b/hub", "/c/huggingface/hub", "/d/.cache/huggingface/hub"];
        for (first, want) in want.iter().enumerate() {
            assert_eq!(config(&all[first..]).unwrap().hub_cache, Path::new(want));
        }
        assert_eq!(config(&all).unwrap().models, Path::new("/c/tern/models"));
        assert_eq!(config(&all[3..]).unwrap().models, Path::new("/d/.cache/tern/models"));
        assert_eq!(config(&all[..1]).unwrap().models, Path::new("/a/tern/models"));
        assert!(matches!(config(&[]), Err(HubError::NoFolder)));
    }

    #[test]
    fn empty_variables_are_absent_and_a_tilde_is_home() {
        let c =
            config(&[("HF_HUB_CACHE", ""), ("HF_HOME", "~/hf"), ("HOME", "/d"), ("HF_TOKEN", "")]).unwrap();
        assert_eq!(c.hub_cache, Path::new("/d/hf/hub"));
        assert_eq!(c.token, None);
        assert_eq!(c.token_file.as_deref(), Some(Path::new("/d/hf/token")));
        assert_eq!(c.endpoint, ENDPOINT);
        assert!(!c.offline);
    }

    #[test]
    fn other_variables_are_used() {
        let vars = [("HOME", "/d"), ("HF_TOKEN", " hf_x\n"), ("HF_ENDPOINT", "http://mirror/")];
        let c = config(&vars).unwrap();
        assert_eq!((c.token.as_deref(), c.endpoint.as_str()), (Some("hf_x"), "http://mirror"));
        assert!(!format!("{c:?}").contains("hf_x"));
        for (value, offline) in [("1", true), ("TRUE", true), ("on", true), ("0", false), ("no", false)] {
            assert_eq!(config(&[("HOME", "/d"), ("HF_HUB_OFFLINE", value)]).unwrap().offline, offline);
        }
    }
}
