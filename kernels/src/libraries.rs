//! Finding the libraries of the CUDA engine at run time: by path from the site's policy, or by versioned name. It
//! opens them and looks up symbols; it calls nothing in them, and it does not judge who may write to a path.
//!
//! A path of the policy is a file, or a folder. In a folder the file is looked for, newest name first, at
//!
//! 1. the folder itself, its `lib` and `lib64`: a CUDA toolkit, an unpacked package;
//! 2. `nvidia/*/lib` and `torch/lib` below it: the folder is a Python environment's `site-packages`;
//! 3. the same below its `lib*/python3*/site-packages` (Debian: `dist-packages`): the folder is the Python environment
//!    itself.
//!
//! Where the policy names a path nothing else is tried: a site that says which library it wants gets that one or an
//! error. Without a path the dynamic loader looks for the versioned names, since runtime-only packages and Python
//! wheels ship no others.

use std::error::Error as _;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

/// Where the dynamic loader looks for a name without a path.
const LOADER_SEARCH: &str = "by the dynamic loader: LD_LIBRARY_PATH, /etc/ld.so.cache, /lib, /usr/lib";

/// What a library is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The NVIDIA driver's interface to programs.
    Driver,
    /// NVIDIA's management library.
    Nvml,
    /// The matrix product.
    CublasLt,
    /// Collectives.
    Nccl,
}

impl Purpose {
    /// How it is called in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "NVIDIA driver",
            Self::Nvml => "NVML",
            Self::CublasLt => "cuBLASLt",
            Self::Nccl => "NCCL",
        }
    }

    /// The names that it is shipped under, newest first.
    #[must_use]
    pub fn files(self) -> &'static [&'static str] {
        match self {
            Self::Driver => &["libcuda.so.1"],
            Self::Nvml => &["libnvidia-ml.so.1"],
            Self::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12"],
            Self::Nccl => &["libnccl.so.2"],
        }
    }
}

impl Purpose {
    /// When the loader looks for what a library needs of others: of NCCL at once, so that what is missing is an error and
    /// not the end of the process in a call; the driver's own libraries come as one with what they need.
    fn binding(self) -> c_int {
        if self == Self::Nccl { RTLD_NOW } else { RTLD_LAZY }
    }
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A library that the CUDA engine needs and that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// It can't be loaded.
    #[error("{purpose}: can't load {names} ({loader}); searched {searched}")]
    Missing {
        /// What it is for.
        purpose: Purpose,
        /// The names that were tried.
        names: String,
        /// What the loader said of the last one.
        loader: String,
        /// Where it was looked for.
        searched: String,
    },
    /// It lacks a function.
    #[error("{purpose}: {library} has no {symbol} ({loader}): another version, or not that library")]
    Symbol {
        /// What the library is for.
        purpose: Purpose,
        /// The library.
        library: String,
        /// The function.
        symbol: String,
        /// What the loader said.
        loader: String,
    },
}

/// Where the site keeps the libraries: a file or a folder each, or nothing where the dynamic loader finds them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Libraries {
    /// The driver's `libcuda.so.1`.
    pub cuda: Option<PathBuf>,
    /// NVML.
    pub nvml: Option<PathBuf>,
    /// cuBLASLt.
    pub cublas_lt: Option<PathBuf>,
    /// NCCL.
    pub nccl: Option<PathBuf>,
}

impl Libraries {
    /// What the policy says of one library.
    #[must_use]
    pub fn policy(&self, purpose: Purpose) -> Option<&Path> {
        match purpose {
            Purpose::Driver => self.cuda.as_deref(),
            Purpose::Nvml => self.nvml.as_deref(),
            Purpose::CublasLt => self.cublas_lt.as_deref(),
            Purpose::Nccl => self.nccl.as_deref(),
        }
    }

    /// What to hand to the dynamic loader, in this order. Empty where the policy names a folder that holds none.
    #[must_use]
    pub fn candidates(&self, purpose: Purpose) -> Vec<PathBuf> {
        match self.policy(purpose) {
            None => purpose.files().iter().map(PathBuf::from).collect(),
            Some(folder) if folder.is_dir() => {
                let places = places(folder);
                let files = purpose.files().iter();
                files
                    .flat_map(|file| places.iter().map(move |place| place.join(file)))
                    .filter(|path| path.is_file())
                    .collect()
            }
            // A bare file name would send the loader elsewhere; "./" keeps it a path.
            Some(file) if file.components().count() == 1 => vec![Path::new(".").join(file)],
            Some(file) => vec![file.to_owned()],
        }
    }

    /// Opens a library.
    ///
    /// # Errors
    /// None of the candidates can be loaded.
    pub(crate) fn open(&self, purpose: Purpose) -> Result<Loaded, LibraryError> {
        let mut said = None;
        for path in self.candidates(purpose) {
            // SAFETY: the path is the policy's, which root alone can write, or the vendor's own name; these
            // libraries' initialisers start nothing until a function is called, and RTLD_LOCAL keeps their
            // symbols out of everybody else's way.
            match unsafe { Library::open(Some(&path), purpose.binding() | RTLD_LOCAL) } {
                Ok(library) => return Ok(Loaded { purpose, path, library: ManuallyDrop::new(library) }),
                Err(error) => said = Some(words(&error)),
            }
        }
        let loader = said.unwrap_or_else(|| "no such file in the folder".into());
        let (names, searched) = match self.policy(purpose) {
            None => (purpose.files().join(" or "), LOADER_SEARCH.into()),
            Some(path) if path.is_dir() => (
                purpose.files().join(" or "),
                format!(
                    "{path}, lib, lib64, nvidia/*/lib, torch/lib and their like below lib*/python3* in it",
                    path = path.display()
                ),
            ),
            Some(path) => (path.display().to_string(), "that path only, which the policy names".into()),
        };
        Err(LibraryError::Missing { purpose, names, loader, searched })
    }
}

/// An open library. It stays mapped until the process ends: the vendor's libraries keep threads and exit handlers
/// of their own, which an unmapped library would pull the ground from under.
#[derive(Debug)]
pub(crate) struct Loaded {
    purpose: Purpose,
    path: PathBuf,
    library: ManuallyDrop<Library>,
}

impl Loaded {
    /// What was handed to the loader.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Looks a function up.
    ///
    /// # Safety
    /// `F` is the type of a function pointer, and the function of this name has that type in every version of the
    /// library.
    ///
    /// # Errors
    /// The library has none of that name.
    pub(crate) unsafe fn function<F: Copy>(&self, symbol: &CStr) -> Result<F, LibraryError> {
        let missing = |loader: String| LibraryError::Symbol {
            purpose: self.purpose,
            library: self.path.display().to_string(),
            symbol: symbol.to_string_lossy().into_owned(),
            loader,
        };
        // SAFETY: any symbol has an address, and none is read.
        let address = unsafe { self.library.get::<*const c_void>(symbol.to_bytes_with_nul()) };
        let address = address.map_err(|error| missing(words(&error)))?;
        if address.is_null() {
            return Err(missing("it is null".to_owned()));
        }
        // SAFETY: the caller vouches for the type; the library is never unmapped, so the pointer stays good.
        let found = unsafe { self.library.get::<F>(symbol.to_bytes_with_nul()) };
        found.map(|pointer| *pointer).map_err(|error| missing(words(&error)))
    }
}

/// The loader's own words: libloading keeps them in the source.
fn words(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The folders below a policy's folder that may hold a library.
fn places(folder: &Path) -> Vec<PathBuf> {
    let mut places = vec![folder.to_owned(), folder.join("lib"), folder.join("lib64")];
    python_places(folder, &mut places);
    for lib in ["lib", "lib64"] {
        for python in sorted(&folder.join(lib), |name| name.as_bytes().starts_with(b"python3")) {
            for packages in ["site-packages", "dist-packages"] {
                python_places(&python.join(packages), &mut places);
            }
        }
    }
    places
}

/// Where NVIDIA's wheels and PyTorch keep libraries below `site-packages`.
fn python_places(site_packages: &Path, places: &mut Vec<PathBuf>) {
    // `nvidia/cu13/lib` before `nvidia/cublas/lib`: the newest names of a place win anyway, the order only has to
    // be the same on every node.
    places.extend(sorted(&site_packages.join("nvidia"), |_| true).into_iter().map(|one| one.join("lib")));
    places.push(site_packages.join("torch/lib"));
}

/// What a folder holds under such names, in order of name. Nothing where it can't be read.
fn sorted(folder: &Path, wanted: impl Fn(&OsStr) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let mut found: Vec<PathBuf> =
        entries.flatten().filter(|entry| wanted(&entry.file_name())).map(|entry| entry.path()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"not a library").unwrap();
    }

    fn cublas_lt(path: &Path) -> Libraries {
        Libraries { cublas_lt: Some(path.to_owned()), ..Libraries::default() }
    }

    #[test]
    fn without_a_path_the_loader_is_given_versioned_names() {
        let names = Libraries::default().candidates(Purpose::CublasLt);
        assert_eq!(names, [Path::new("libcublasLt.so.13"), Path::new("libcublasLt.so.12")]);
    }

    #[test]
    fn a_missing_library_is_named_with_the_loaders_words() {
        let libraries = cublas_lt(Path::new("/nowhere/libcublasLt.so.13"));
        let text = libraries.open(Purpose::CublasLt).unwrap_err().to_string();
        assert!(text.contains("cuBLASLt: can't load /nowhere/libcublasLt.so.13"), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }

    #[test]
    fn a_folder_without_the_library_is_an_error_and_nothing_else_is_tried() {
        let folder = tempfile::tempdir().unwrap();
        touch(&folder.path().join("lib/libother.so.1"));
        let error = cublas_lt(folder.path()).open(Purpose::CublasLt).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("libcublasLt.so.13 or libcublasLt.so.12"), "{text}");
        assert!(text.contains(folder.path().to_str().unwrap()), "{text}");
        assert!(text.contains("no such file in the folder"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error_with_the_loaders_words() {
        let folder = tempfile::tempdir().unwrap();
        touch(&folder.path().join("libcublasLt.so.12"));
        let text = cublas_lt(folder.path()).open(Purpose::CublasLt).unwrap_err().to_string();
        assert!(text.contains("file too short") || text.contains("invalid ELF header"), "{text}");
    }

    #[test]
    fn a_python_environment_is_searched_newest_name_first() {
        let folder = tempfile::tempdir().unwrap();
        let packages = folder.path().join("lib/python3.12/site-packages");
        let old = packages.join("nvidia/cublas/lib/libcublasLt.so.12");
        let new = packages.join("nvidia/cu13/lib/libcublasLt.so.13");
        let nccl = packages.join("nvidia/nccl/lib/libnccl.so.2");
        for file in [&old, &new, &nccl] {
            touch(file);
        }
        for policy in [folder.path(), &packages] {
            assert_eq!(cublas_lt(policy).candidates(Purpose::CublasLt), [new.clone(), old.clone()]);
            let libraries = Libraries { nccl: Some(policy.to_owned()), ..Libraries::default() };
            assert_eq!(libraries.candidates(Purpose::Nccl), std::slice::from_ref(&nccl));
        }
    }

    #[test]
    fn a_toolkit_folder_is_searched() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lib64/libcublasLt.so.13");
        touch(&file);
        assert_eq!(cublas_lt(folder.path()).candidates(Purpose::CublasLt), [file]);
    }
}
