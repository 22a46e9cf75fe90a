//! MUNGE credentials by way of the site's own libmunge, loaded when it is needed.
//!
//! Not a policy: who is trusted, and what a payload has to say, is decided by the callers. The calls block for
//! as long as libmunge waits for munged (a few seconds at most), so async code runs them on a blocking thread.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;
use zeroize::Zeroizing;

/// libmunge's numbers of options and results, from its public header.
const OPT_CIPHER_TYPE: c_int = 0;
const OPT_ENCODE_TIME: c_int = 6;
const OPT_SOCKET: c_int = 8;
const OPT_UID_RESTRICTION: c_int = 9;
/// Asked for by number, since a site's default may be "no cipher" and our payloads carry a key.
const CIPHER_AES128: c_int = 4;
const SUCCESS: c_int = 0;
const CRED_REPLAYED: c_int = 17;

/// Longest credential that is handed to libmunge; ours are below 2 KiB.
const MAX_CREDENTIAL: usize = 16 * 1024;

/// Why MUNGE could not be used, or refused.
#[derive(Debug, thiserror::Error)]
pub enum MungeError {
    /// The library is missing or not a libmunge.
    #[error("can't load {library}: install MUNGE's library, or set paths.libmunge in the policy")]
    Load {
        /// What was opened.
        library: PathBuf,
        /// The loader's words.
        #[source]
        source: libloading::Error,
    },
    /// The path holds a zero byte.
    #[error("the path of munged's socket, {socket:?}, can't be handed to libmunge")]
    SocketPath {
        /// The path.
        socket: PathBuf,
    },
    /// libmunge had no memory for a context.
    #[error("libmunge could not make a context (out of memory)")]
    Context,
    /// A setting was refused.
    #[error("libmunge refused the setting {option}: {text}")]
    Setting {
        /// Which.
        option: &'static str,
        /// MUNGE's words.
        text: String,
    },
    /// No credential was made.
    #[error("munged at {socket} made no credential: {text} (is munged running?)")]
    Encode {
        /// The socket.
        socket: PathBuf,
        /// MUNGE's words.
        text: String,
    },
    /// A credential was refused.
    #[error("munged at {socket} refused the credential: {text}")]
    Decode {
        /// The socket.
        socket: PathBuf,
        /// MUNGE's words.
        text: String,
    },
    /// Not something that munged could have made.
    #[error("not a MUNGE credential: {length} bytes, or a zero byte inside")]
    Malformed {
        /// Its length.
        length: usize,
    },
}

/// What a credential says. MUNGE vouches for everything but the payload's meaning.
#[derive(Debug)]
pub struct Decoded {
    /// What its maker put in.
    pub payload: Zeroizing<Vec<u8>>,
    /// Who made it.
    pub uid: u32,
    /// The maker's group.
    pub gid: u32,
    /// When it was made, in seconds since 1970.
    pub encoded_at: i64,
    /// Whether this munged has seen it before. Another munged can't know, so freshness has to come from a nonce.
    pub replayed: bool,
}

type Context = *mut c_void;
type Create = unsafe extern "C" fn() -> Context;
type Destroy = unsafe extern "C" fn(Context);
type Strerror = unsafe extern "C" fn(Context) -> *const c_char;
type CodeText = unsafe extern "C" fn(c_int) -> *const c_char;
type Option_ = unsafe extern "C" fn(Context, c_int, ...) -> c_int;
type Encode = unsafe extern "C" fn(*mut *mut c_char, Context, *const c_void, c_int) -> c_int;
type Decode =
    unsafe extern "C" fn(*const c_char, Context, *mut *mut c_void, *mut c_int, *mut u32, *mut u32) -> c_int;

unsafe extern "C" {
    /// libmunge hands out memory of the C library's malloc.
    fn free(memory: *mut c_void);
}

struct Functions {
    create: Create,
    destroy: Destroy,
    context_text: Strerror,
    code_text: CodeText,
    set: Option_,
    get: Option_,
    encode: Encode,
    decode: Decode,
    /// Keeps the code mapped for as long as the pointers above are.
    _library: Library,
}

/// A loaded libmunge and the munged to talk to.
#[derive(Clone)]
pub struct Munge {
    functions: Arc<Functions>,
    socket: PathBuf,
    socket_c: CString,
}

impl std::fmt::Debug for Munge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Munge").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Munge {
    /// Loads the library; munged is not asked yet.
    ///
    /// # Errors
    /// The library can't be loaded, or the socket's path can't be handed to it.
    pub fn open(library: &Path, socket: &Path) -> Result<Self, MungeError> {
        let failed = |source| MungeError::Load { library: library.to_owned(), source };
        let socket_c = CString::new(socket.as_os_str().as_bytes())
            .map_err(|_| MungeError::SocketPath { socket: socket.to_owned() })?;
        // SAFETY: loading runs the library's constructors. The path is the policy's, which root alone can write,
        // and libmunge has no constructor that depends on the process's state.
        let loaded = unsafe { Library::new(library) }.map_err(failed)?;
        // SAFETY: the names and types are those of munge.h; the pointers live in one struct with the library.
        let functions = unsafe {
            Functions {
                create: *loaded.get::<Create>(c"munge_ctx_create").map_err(failed)?,
                destroy: *loaded.get::<Destroy>(c"munge_ctx_destroy").map_err(failed)?,
                context_text: *loaded.get::<Strerror>(c"munge_ctx_strerror").map_err(failed)?,
                code_text: *loaded.get::<CodeText>(c"munge_strerror").map_err(failed)?,
                set: *loaded.get::<Option_>(c"munge_ctx_set").map_err(failed)?,
                get: *loaded.get::<Option_>(c"munge_ctx_get").map_err(failed)?,
                encode: *loaded.get::<Encode>(c"munge_encode").map_err(failed)?,
                decode: *loaded.get::<Decode>(c"munge_decode").map_err(failed)?,
                _library: loaded,
            }
        };
        Ok(Self { functions: Arc::new(functions), socket: socket.to_owned(), socket_c })
    }

    /// Makes a credential that only `reader` can open. The payload is encrypted.
    ///
    /// # Errors
    /// munged can't be reached, or refuses; with its own words.
    pub fn encode(&self, payload: &[u8], reader: u32) -> Result<String, MungeError> {
        let failed = |text| MungeError::Encode { socket: self.socket.clone(), text };
        let length =
            c_int::try_from(payload.len()).map_err(|_| failed("the payload is too long".to_owned()))?;
        let context = self.context()?;
        // SAFETY: the context is alive; the option takes an int by value, as given.
        let code = unsafe { (self.functions.set)(context.raw, OPT_CIPHER_TYPE, CIPHER_AES128) };
        context.accepted("cipher", code)?;
        // SAFETY: the context is alive; the option takes a uid_t (u32) by value, as given.
        let code = unsafe { (self.functions.set)(context.raw, OPT_UID_RESTRICTION, reader) };
        context.accepted("uid restriction", code)?;
        let mut credential: *mut c_char = std::ptr::null_mut();
        // SAFETY: the buffer is valid for `length` bytes, the out pointer for the call's duration.
        let code = unsafe {
            (self.functions.encode)(&raw mut credential, context.raw, payload.as_ptr().cast(), length)
        };
        let text = if credential.is_null() {
            None
        } else {
            // SAFETY: libmunge returned a string that ends in a zero byte and now belongs to us.
            let owned = unsafe { CStr::from_ptr(credential) }.to_str().ok().map(str::to_owned);
            // SAFETY: it came from malloc and is not used any more.
            unsafe { free(credential.cast()) };
            owned
        };
        match text {
            Some(text) if code == SUCCESS => Ok(text),
            _ => Err(failed(context.text(code))),
        }
    }

    /// Opens a credential. A replayed one is opened too and says so: the caller's nonce decides.
    ///
    /// # Errors
    /// Forged, expired, meant for somebody else, or munged can't be reached; with munge's own words.
    pub fn decode(&self, credential: &str) -> Result<Decoded, MungeError> {
        let malformed = || MungeError::Malformed { length: credential.len() };
        if credential.len() > MAX_CREDENTIAL {
            return Err(malformed());
        }
        let credential_c = CString::new(credential).map_err(|_| malformed())?;
        let context = self.context()?;
        let mut data: *mut c_void = std::ptr::null_mut();
        let (mut length, mut uid, mut gid) = (0, u32::MAX, u32::MAX);
        // SAFETY: the string ends in a zero byte; all out pointers are valid for the call's duration.
        let code = unsafe {
            (self.functions.decode)(
                credential_c.as_ptr(),
                context.raw,
                &raw mut data,
                &raw mut length,
                &raw mut uid,
                &raw mut gid,
            )
        };
        let payload = context.take(data, length);
        if code != SUCCESS && code != CRED_REPLAYED {
            return Err(MungeError::Decode { socket: self.socket.clone(), text: context.text(code) });
        }
        let mut encoded_at: i64 = 0;
        // SAFETY: the context is alive; the option writes a time_t (64 bits on the platforms of Slurm's nodes).
        let got = unsafe { (self.functions.get)(context.raw, OPT_ENCODE_TIME, &raw mut encoded_at) };
        context.accepted("encode time", got)?;
        Ok(Decoded { payload, uid, gid, encoded_at, replayed: code == CRED_REPLAYED })
    }

    fn context(&self) -> Result<Held<'_>, MungeError> {
        // SAFETY: no arguments; the result is checked.
        let raw = unsafe { (self.functions.create)() };
        if raw.is_null() {
            return Err(MungeError::Context);
        }
        let held = Held { raw, functions: &self.functions };
        // SAFETY: the context is alive; the option takes a C string, which libmunge copies.
        let code = unsafe { (self.functions.set)(raw, OPT_SOCKET, self.socket_c.as_ptr()) };
        held.accepted("socket", code)?;
        Ok(held)
    }
}

/// A context that is destroyed in every way out.
struct Held<'a> {
    raw: Context,
    functions: &'a Functions,
}

impl Held<'_> {
    fn accepted(&self, option: &'static str, code: c_int) -> Result<(), MungeError> {
        if code == SUCCESS { Ok(()) } else { Err(MungeError::Setting { option, text: self.text(code) }) }
    }

    /// The context's own words, which name the cause; else those of the code.
    fn text(&self, code: c_int) -> String {
        // SAFETY: both return a static string or one that lives as long as the context, or null.
        let (detail, general) =
            unsafe { ((self.functions.context_text)(self.raw), (self.functions.code_text)(code)) };
        [detail, general].into_iter().find(|text| !text.is_null()).map_or_else(
            || format!("error {code}"),
            // SAFETY: not null, and ends in a zero byte as both functions promise.
            |text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        )
    }

    /// Copies what munge returned and wipes the original before it goes back to the allocator.
    fn take(&self, data: *mut c_void, length: c_int) -> Zeroizing<Vec<u8>> {
        let Ok(length) = usize::try_from(length) else { return Zeroizing::default() };
        if data.is_null() {
            return Zeroizing::default();
        }
        // SAFETY: libmunge allocated `length` bytes (and one more) and handed them to us.
        let bytes = unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), length) };
        let copy = Zeroizing::new(bytes.to_vec());
        zeroize::Zeroize::zeroize(bytes);
        // SAFETY: it came from malloc and is not used any more.
        unsafe { free(data) };
        copy
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: made by munge_ctx_create and destroyed once.
        unsafe { (self.functions.destroy)(self.raw) };
    }
}
