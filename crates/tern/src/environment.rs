//! Paths from environment variables: the caches of models and kernels, and the places to search for NVRTC.
//! The only file of the library that reads it.

use std::path::{Path, PathBuf};

use tern_cuda::SearchPaths;
use tern_hub::HubError;

/// The folders and the access token of the Hugging Face hub, from the variables that its own tools use.
pub fn hub_config() -> Result<tern_hub::Config, HubError> {
    tern_hub::Config::from_env(|name| std::env::var(name).ok())
}

/// Where compiled kernels are cached.
pub fn kernel_cache() -> Option<PathBuf> {
    let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("tern/kernels"))
}

/// Where NVRTC may be: toolkits and Python environments that are named by variables or by custom.
pub fn nvrtc_paths() -> SearchPaths {
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).collect();
    let mut site_packages = vec![PathBuf::from("/usr/lib/python3/dist-packages")];
    let homes =
        [variable("VIRTUAL_ENV"), variable("CONDA_PREFIX"), variable("HOME").map(|home| home.join(".local"))];
    for prefix in homes.into_iter().flatten().chain([PathBuf::from("/usr/local"), PathBuf::from("/usr")]) {
        site_packages.extend(python_packages(&prefix.join("lib")));
    }
    SearchPaths { toolkits, site_packages }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

/// The package folders of every Python below a `lib` folder.
fn python_packages(lib: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(lib).into_iter().flatten().flatten();
    let named = entries.filter(|e| e.file_name().to_string_lossy().starts_with("python3"));
    named.flat_map(|e| ["site-packages", "dist-packages"].map(|sub| e.path().join(sub))).collect()
}
