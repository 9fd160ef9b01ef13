//! NVRTC, NVIDIA's run-time compiler.
//!
//! It is searched where toolkits, distributions and Python's wheels install it, and opened only when a kernel
//! has to be compiled.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

type Handle = *mut std::ffi::c_void;

/// Library names, newest first.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "libnvrtc.so.11.2"];

/// Folders below `site-packages` in which wheels install the library.
const WHEELS: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"];

/// The compiler.
pub struct Nvrtc {
    library: Library,
    /// Where it was found.
    pub path: PathBuf,
    /// Major and minor version.
    pub version: (i32, i32),
}

/// Where to search for NVRTC, beside the paths of the dynamic loader.
#[derive(Clone, Debug, Default)]
pub struct SearchPaths {
    /// Folders that hold a toolkit, such as CUDA_HOME.
    pub toolkits: Vec<PathBuf>,
    /// `site-packages` folders of Python environments.
    pub site_packages: Vec<PathBuf>,
}

impl SearchPaths {
    /// The files to try, in order.
    pub fn candidates(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = vec![];
        for toolkit in self.toolkits.iter().map(PathBuf::as_path).chain([Path::new("/usr/local/cuda")]) {
            folders.extend(["lib64", "targets/x86_64-linux/lib", "lib"].map(|sub| toolkit.join(sub)));
        }
        for site in &self.site_packages {
            folders.extend(WHEELS.map(|sub| site.join(sub)));
        }
        let in_folders = folders.iter().flat_map(|folder| NAMES.map(|name| folder.join(name)));
        let found: Vec<PathBuf> = in_folders.filter(|path| path.exists()).collect();
        // then what the dynamic loader finds by name
        found.into_iter().chain(NAMES.map(PathBuf::from)).collect()
    }
}

impl Nvrtc {
    /// Opens the first candidate that can be opened; the error lists what was tried.
    pub fn open(paths: &SearchPaths) -> Result<Nvrtc, String> {
        let mut tried = vec![];
        for path in paths.candidates() {
            match Nvrtc::open_at(&path) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(why) => tried.push(format!("{}: {why}", path.display())),
            }
        }
        Err(format!("NVRTC not found; tried {}", tried.join("; ")))
    }

    fn open_at(path: &Path) -> Result<Nvrtc, String> {
        // NVRTC loads a second library by its bare name, which the loader finds only if it is already loaded
        if let Some(folder) = path.parent().filter(|folder| folder.is_dir()) {
            preload_builtins(folder);
        }
        // SAFETY: a library of this name is NVRTC; its initialisers are trusted like the driver's.
        let library = unsafe { Library::new(path) }.map_err(|e| e.to_string())?;
        let mut nvrtc = Nvrtc { library, path: path.to_path_buf(), version: (0, 0) };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: this is the documented signature.
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
            unsafe { nvrtc.get("nvrtcVersion")? };
        // SAFETY: both pointers are to live integers.
        nvrtc.check(unsafe { version(&raw mut major, &raw mut minor) })?;
        nvrtc.version = (major, minor);
        Ok(nvrtc)
    }

    /// A function of the library.
    ///
    /// # Safety
    ///
    /// `F` must be the C signature of the function.
    unsafe fn get<F: Copy>(&self, name: &str) -> Result<F, String> {
        // SAFETY: by the contract of this function.
        unsafe { self.library.get::<F>(name.as_bytes()) }.map(|f| *f).map_err(|e| e.to_string())
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: this is the documented signature.
        let get: Result<unsafe extern "C" fn(c_int) -> *const c_char, String> =
            unsafe { self.get("nvrtcGetErrorString") };
        // SAFETY: NVRTC returns a static string for every code.
        let message = get.map(|f| unsafe { CStr::from_ptr(f(code)) }.to_string_lossy().into_owned());
        Err(message.unwrap_or_else(|_| format!("NVRTC error {code}")))
    }

    /// Compiles a source; gives the machine code and the compiler's log.
    pub fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<(Vec<u8>, String), String> {
        type Create = unsafe extern "C" fn(
            *mut Handle,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
        type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
        type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;
        type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;
        let c_string = |text: &str| CString::new(text).map_err(|e| e.to_string());
        let (source, title) = (c_string(source)?, c_string(name)?);
        let options = options.iter().map(|o| c_string(o)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let mut program: Handle = ptr::null_mut();
        // SAFETY: these are the documented signatures; strings and the vector outlive the
        // calls; NVRTC gives the sizes.
        unsafe {
            let create: Create = self.get("nvrtcCreateProgram")?;
            let compile: Compile = self.get("nvrtcCompileProgram")?;
            let destroy: Destroy = self.get("nvrtcDestroyProgram")?;
            let (log_size, log): (Size, Get) =
                (self.get("nvrtcGetProgramLogSize")?, self.get("nvrtcGetProgramLog")?);
            let (size, get): (Size, Get) = (self.get("nvrtcGetCUBINSize")?, self.get("nvrtcGetCUBIN")?);
            self.check(create(
                &raw mut program,
                source.as_ptr(),
                title.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            ))?;
            let fill = |size: Size, get: Get| -> Result<Vec<u8>, String> {
                let mut len = 0;
                self.check(size(program, &raw mut len))?;
                let mut bytes = vec![0u8; len];
                self.check(get(program, bytes.as_mut_ptr().cast()))?;
                Ok(bytes)
            };
            let compiled = self.check(compile(program, pointers.len() as c_int, pointers.as_ptr()));
            let notes = fill(log_size, log)
                .map(|log| String::from_utf8_lossy(&log).trim_end_matches('\0').to_string());
            let code = compiled.and_then(|()| fill(size, get));
            destroy(&raw mut program);
            let notes = notes.unwrap_or_default();
            code.map(|code| (code, notes.clone())).map_err(|e| format!("{name}: {e}\n{notes}"))
        }
    }
}

fn preload_builtins(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let builtins = entries.flatten().map(|e| e.path()).filter(|path| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        name.starts_with("libnvrtc-builtins.so")
    });
    for path in builtins {
        // SAFETY: as for NVRTC itself. It stays open: NVRTC needs it as long as the process lives.
        if let Ok(library) = unsafe { Library::new(path) } {
            std::mem::forget(library);
        }
    }
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nvrtc {}.{} at {}", self.version.0, self.version.1, self.path.display())
    }
}
