//! Who may join a meeting: sealed credentials, by MUNGE or by a key that the nodes have in common.
//!
//! A sealed payload can be read and made by the trusted user alone. That it is fresh and meant for this meeting
//! is the handshake's business.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zeroize::{Zeroize, Zeroizing};

use crate::munge::{Munge, MungeError};

/// A key file that is shorter could be a password; 32 bytes is what BLAKE3 keys with.
const MIN_KEY_BYTES: usize = 32;
/// Most bytes of a secret: more is certainly not a key.
pub const MOST_KEY_BYTES: u64 = 64 * 1024;
const NONCE_BYTES: usize = 32;
const MAC_BYTES: usize = 32;
/// `O_NOFOLLOW | O_NONBLOCK`: no link is followed, and a FIFO in the file's place doesn't hang us.
const OPEN_FLAGS: i32 = (rustix::fs::OFlags::NOFOLLOW.bits() | rustix::fs::OFlags::NONBLOCK.bits()) as i32;

/// Why a payload was not sealed or not opened.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// MUNGE's answer.
    #[error(transparent)]
    Munge(#[from] MungeError),
    /// Made by a user who is not trusted.
    #[error("the credential was made by uid {uid}, only uid {trusted} is trusted")]
    Untrusted {
        /// Its maker.
        uid: u32,
        /// Who would be.
        trusted: u32,
    },
    /// Not sealed with this key.
    #[error("the credential was not made with the same key")]
    Forged,
    /// The machine gives no random numbers.
    #[error("no random numbers from the system")]
    Random(#[source] getrandom::Error),
    /// The blocking thread went away.
    #[error("the call of MUNGE did not end: {0}")]
    Interrupted(String),
}

/// Why the site's key file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// Can't be read, or is a symbolic link.
    #[error("can't read the site key file {path} (it must be a regular file, not a link)")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// Somebody else could have read or made it.
    #[error(
        "site key file {path}: must be a regular file of uid {owner} with mode 0600, is uid {uid}, mode {mode:o}"
    )]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// Who must own it.
        owner: u32,
        /// Who does.
        uid: u32,
        /// Its type and mode.
        mode: u32,
    },
    /// Too short or too long.
    #[error("site key file {path}: holds {length} bytes, needs 32 bytes to 64 KiB of random data")]
    Length {
        /// The file.
        path: PathBuf,
        /// How long it is.
        length: usize,
    },
}

/// A secret where there is no MUNGE: the same file on all nodes, or what they were told another way.
#[derive(Clone)]
pub struct SiteKey {
    key: Arc<Zeroizing<[u8; 32]>>,
}

impl std::fmt::Debug for SiteKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SiteKey")
    }
}

impl SiteKey {
    /// Reads the file; `owner` is SlurmdUser's uid, which is 0.
    ///
    /// # Errors
    /// It is a link, not a regular file, somebody else's, open to others, too short or too long.
    pub fn read(path: &Path, owner: u32) -> Result<Self, KeyFileError> {
        let failed = |source| KeyFileError::Read { path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).custom_flags(OPEN_FLAGS).open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() || meta.uid() != owner || meta.mode() & 0o7777 != 0o600 {
            return Err(KeyFileError::Unsafe {
                path: path.to_owned(),
                owner,
                uid: meta.uid(),
                mode: meta.mode(),
            });
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(4096));
        file.take(MOST_KEY_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() < MIN_KEY_BYTES || bytes.len() as u64 > MOST_KEY_BYTES {
            return Err(KeyFileError::Length { path: path.to_owned(), length: bytes.len() });
        }
        Ok(Self::from_secret(&bytes))
    }

    /// From a secret that is written as hexadecimal digits; `None`: it is not, or too short or too long.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(unhex(text.trim())?);
        let fits = bytes.len() >= MIN_KEY_BYTES && bytes.len() as u64 <= MOST_KEY_BYTES;
        fits.then(|| Self::from_secret(&bytes))
    }

    /// From a secret that is already in memory.
    #[must_use]
    pub fn from_secret(secret: &[u8]) -> Self {
        Self { key: Arc::new(Zeroizing::new(blake3::derive_key("aimaster 1 site key", secret))) }
    }

    /// Encrypts with BLAKE3's output as key stream, then authenticates nonce and text with another key.
    pub(crate) fn seal(&self, payload: &[u8]) -> Result<String, AuthError> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(AuthError::Random)?;
        let mut sealed = nonce.to_vec();
        sealed.extend_from_slice(payload);
        self.mask(&nonce, &mut sealed[NONCE_BYTES..]);
        let mac = blake3::keyed_hash(&self.part("mac"), &sealed);
        sealed.extend_from_slice(mac.as_bytes());
        Ok(hex(&sealed))
    }

    pub(crate) fn open(&self, credential: &str) -> Result<Zeroizing<Vec<u8>>, AuthError> {
        let sealed = unhex(credential).ok_or(AuthError::Forged)?;
        let split =
            sealed.len().checked_sub(MAC_BYTES).filter(|at| *at >= NONCE_BYTES).ok_or(AuthError::Forged)?;
        let (text, mac) = sealed.split_at(split);
        let mac: [u8; MAC_BYTES] = mac.try_into().map_err(|_| AuthError::Forged)?;
        // Comparison of two hashes takes the same time wherever they differ.
        if blake3::keyed_hash(&self.part("mac"), text) != blake3::Hash::from_bytes(mac) {
            return Err(AuthError::Forged);
        }
        let nonce: [u8; NONCE_BYTES] = text[..NONCE_BYTES].try_into().map_err(|_| AuthError::Forged)?;
        let mut payload = Zeroizing::new(text[NONCE_BYTES..].to_vec());
        self.mask(&nonce, &mut payload);
        Ok(payload)
    }

    fn part(&self, purpose: &str) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(*blake3::keyed_hash(&self.key, purpose.as_bytes()).as_bytes())
    }

    fn mask(&self, nonce: &[u8; NONCE_BYTES], text: &mut [u8]) {
        let mut stream = Zeroizing::new(vec![0; text.len()]);
        let mut hasher = blake3::Hasher::new_keyed(&self.part("cipher"));
        let mut output = hasher.update(nonce).finalize_xof();
        output.fill(&mut stream);
        hasher.zeroize();
        output.zeroize();
        text.iter_mut().zip(stream.iter()).for_each(|(byte, mask)| *byte ^= mask);
    }
}

/// How nodes prove themselves to each other.
#[derive(Debug, Clone)]
pub enum Authenticator {
    /// By MUNGE; `trusted` is SlurmdUser's uid, which is 0.
    Munge {
        /// The library and its munged.
        munge: Munge,
        /// Who makes and reads credentials.
        trusted: u32,
    },
    /// By a secret that they have in common: the site's key file, or one that was made for this run alone.
    Key(SiteKey),
}

impl Authenticator {
    /// Seals a payload so that only the trusted user on a node of this site reads it.
    ///
    /// # Errors
    /// See [`AuthError`].
    pub async fn seal(&self, payload: Zeroizing<Vec<u8>>) -> Result<String, AuthError> {
        match self {
            Self::Key(key) => key.seal(&payload),
            Self::Munge { munge, trusted } => {
                let (munge, trusted) = (munge.clone(), *trusted);
                Ok(blocking(move || munge.encode(&payload, trusted)).await??)
            }
        }
    }

    /// Opens what [`Self::seal`] made on this or another node.
    ///
    /// # Errors
    /// See [`AuthError`].
    pub async fn open(&self, credential: String) -> Result<Zeroizing<Vec<u8>>, AuthError> {
        match self {
            Self::Key(key) => key.open(&credential),
            Self::Munge { munge, trusted } => {
                let (munge, trusted) = (munge.clone(), *trusted);
                let decoded = blocking(move || munge.decode(&credential)).await??;
                if decoded.uid != trusted {
                    return Err(AuthError::Untrusted { uid: decoded.uid, trusted });
                }
                Ok(decoded.payload)
            }
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, AuthError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| AuthError::Interrupted(error.to_string()))
}

/// 32 fresh random bytes.
pub(crate) fn random() -> Result<[u8; 32], AuthError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(AuthError::Random)?;
    Ok(bytes)
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|b| [b >> 4, b & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Wipes a key that was copied out of a message.
pub(crate) fn wipe(key: &mut [u8; 32]) {
    key.zeroize();
}
