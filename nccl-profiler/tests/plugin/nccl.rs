//! Plays NCCL: loads the plugin's file and calls its table. Descriptors are written byte by byte at the offsets of NCCL's headers,
//! not with the crate's structures, so that a wrong structure is seen here.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

pub const LIGHT: i32 = 70;

type Start = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> i32;
type Stop = unsafe extern "C" fn(*mut c_void) -> i32;
type State = unsafe extern "C" fn(*mut c_void, i32, *const c_void) -> i32;
type InitV3 = unsafe extern "C" fn(*mut *mut c_void, *mut i32) -> i32;
type InitV4 =
    unsafe extern "C" fn(*mut *mut c_void, *mut i32, *const c_char, u64, i32, i32, i32, *const c_void) -> i32;
type InitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut i32, *const c_char, i32, i32, i32, *const c_void) -> i32;

#[repr(C)]
struct Table {
    name: *const c_char,
    init: *const c_void,
    start: Start,
    stop: Stop,
    state: State,
    finalize: Stop,
}

/// A number that NCCL keeps for an event or a communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle(pub usize);

impl Handle {
    pub const NULL: Self = Self(0);

    fn pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0)
    }
}

#[derive(Clone, Copy)]
pub struct Comm {
    pub id: u64,
    pub name: &'static CStr,
    pub nodes: i32,
    pub ranks: i32,
    pub rank: i32,
}

pub const COMM: Comm = Comm { id: 0x59a3_2f4e_7c16_8a72, name: c"dp", nodes: 2, ranks: 4, rank: 3 };

#[derive(Clone, Copy)]
pub struct Coll {
    pub sequence: u64,
    pub function: &'static CStr,
    pub count: usize,
    pub datatype: &'static CStr,
    pub channels: u8,
}

pub const ALL_REDUCE: Coll =
    Coll { sequence: 0, function: c"AllReduce", count: 1 << 18, datatype: c"ncclFloat32", channels: 2 };

pub struct ProxyOp {
    pub pid: i32,
    pub channel: u8,
    pub peer: i32,
    pub steps: i32,
    pub send: bool,
}

/// The plugin as NCCL of one interface version has it.
pub struct Nccl {
    library: Option<Library>,
    table: *const Table,
    pub api: u32,
    /// NCCL's global.
    pub mask: &'static std::sync::atomic::AtomicI32,
    log: *const c_void,
}

// SAFETY: the table is constant, and the plugin is to be called from any thread.
unsafe impl Sync for Nccl {}
// SAFETY: see above.
unsafe impl Send for Nccl {}

impl Nccl {
    pub fn load(plugin: &Path, api: u32, log: *const c_void) -> Self {
        let mask = Box::leak(Box::new(std::sync::atomic::AtomicI32::new(-1)));
        // SAFETY: the plugin's own file; it has no initialiser.
        let library = unsafe { Library::open(Some(plugin), RTLD_NOW | RTLD_LOCAL) }.unwrap();
        let name = format!("ncclProfiler_v{api}");
        // SAFETY: a table stands under this name.
        let table: Symbol<*const Table> = unsafe { library.get(name.as_bytes()) }.unwrap();
        let table = table.into_raw().cast_const().cast();
        Self { library: Some(library), table, api, mask, log }
    }

    /// As NCCL does with the last communicator.
    pub fn unload(mut self) {
        self.library.take().unwrap().close().unwrap();
    }

    fn table(&self) -> &Table {
        // SAFETY: the library is loaded.
        unsafe { &*self.table }
    }

    pub fn name(&self) -> String {
        // SAFETY: the plugin's name is a C string.
        unsafe { CStr::from_ptr(self.table().name) }.to_str().unwrap().to_owned()
    }

    pub fn mask(&self) -> i32 {
        self.mask.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub fn init(&self, comm: Comm) -> Handle {
        let (init, mask) = (self.table().init, self.mask.as_ptr());
        let mut context = std::ptr::without_provenance_mut(0xbad);
        let Comm { id, name, nodes, ranks, rank } = comm;
        // SAFETY: the signature is that of the table's version.
        let result = unsafe {
            match self.api {
                3 => std::mem::transmute::<*const c_void, InitV3>(init)(&raw mut context, mask),
                4 => std::mem::transmute::<*const c_void, InitV4>(init)(
                    &raw mut context,
                    mask,
                    name.as_ptr(),
                    id,
                    nodes,
                    ranks,
                    rank,
                    self.log,
                ),
                _ => std::mem::transmute::<*const c_void, InitV5>(init)(
                    &raw mut context,
                    id,
                    mask,
                    name.as_ptr(),
                    nodes,
                    ranks,
                    rank,
                    self.log,
                ),
            }
        };
        assert_eq!(result, 0);
        Handle(context.addr())
    }

    pub fn finalize(&self, context: Handle) {
        // SAFETY: any number is allowed.
        assert_eq!(unsafe { (self.table().finalize)(context.pointer()) }, 0);
    }

    /// An event of a type, with what `fill` writes.
    pub fn start(
        &self,
        context: Handle,
        kind: u64,
        parent: Handle,
        fill: impl FnOnce(&mut Descriptor),
    ) -> Handle {
        let mut descriptor = Descriptor([0; 16]);
        if self.api < 5 {
            // The bytes after a type of eight bits are padding: anything.
            descriptor.put(0, &[0xee; 8]);
            descriptor.put(0, &[kind as u8]);
        } else {
            descriptor.put(0, &kind.to_le_bytes());
        }
        descriptor.put(8, &parent.0.to_le_bytes());
        fill(&mut descriptor);
        let mut handle = std::ptr::without_provenance_mut(0xbad);
        // SAFETY: a descriptor of the version; it is longer than the longest.
        let result =
            unsafe { (self.table().start)(context.pointer(), &raw mut handle, descriptor.0.as_ptr().cast()) };
        assert_eq!(result, 0);
        Handle(handle.addr())
    }

    pub fn coll(&self, context: Handle, coll: Coll) -> Handle {
        let more = if self.api == 3 { 16 } else { 0 };
        self.start(context, 1 << 1, Handle(0x77), |descriptor| {
            if self.api == 3 {
                descriptor.put(32, &COMM.id.to_le_bytes());
            }
            descriptor.put(24 + more, &coll.sequence.to_le_bytes());
            descriptor.put_text(32 + more, coll.function);
            descriptor.put(56 + more, &coll.count.to_le_bytes());
            descriptor.put_text(72 + more, coll.datatype);
            descriptor.put(80 + more, &[coll.channels, 16]);
            descriptor.put_text(88 + more, c"RING");
            descriptor.put_text(96 + more, c"LL128");
        })
    }

    pub fn p2p(
        &self,
        context: Handle,
        function: &'static CStr,
        count: usize,
        peer: i32,
        channels: u8,
    ) -> Handle {
        let more = if self.api == 3 { 16 } else { 0 };
        self.start(context, 1 << 2, Handle(0x77), |descriptor| {
            descriptor.put_text(24 + more, function);
            descriptor.put_text(40 + more, c"ncclFloat32");
            descriptor.put(48 + more, &count.to_le_bytes());
            descriptor.put(56 + more, &peer.to_le_bytes());
            if self.api > 3 {
                descriptor.put(60, &[channels]);
            }
        })
    }

    pub fn kernel(&self, context: Handle, parent: Handle, channel: u8, gpu_ns: u64) -> Handle {
        self.start(context, 1 << 6, parent, |descriptor| {
            descriptor.put(24, &[channel]);
            descriptor.put(32, &gpu_ns.to_le_bytes());
        })
    }

    pub fn proxy_op(&self, context: Handle, parent: Handle, what: &ProxyOp) -> Handle {
        self.start(context, 1 << 3, parent, |descriptor| {
            descriptor.put(24, &what.pid.to_le_bytes());
            descriptor.put(28, &[what.channel]);
            descriptor.put(32, &what.peer.to_le_bytes());
            descriptor.put(36, &what.steps.to_le_bytes());
            descriptor.put(44, &i32::from(what.send).to_le_bytes());
        })
    }

    pub fn proxy_step(&self, context: Handle, parent: Handle, step: i32) -> Handle {
        self.start(context, 1 << 4, parent, |descriptor| descriptor.put(24, &step.to_le_bytes()))
    }

    pub fn stop(&self, handle: Handle) {
        // SAFETY: any number is allowed.
        assert_eq!(unsafe { (self.table().stop)(handle.pointer()) }, 0);
    }

    pub fn state(&self, handle: Handle, state: i32, word: u64) {
        let argument = [word, 0];
        // SAFETY: any number is allowed; the argument is longer than the longest.
        assert_eq!(unsafe { (self.table().state)(handle.pointer(), state, argument.as_ptr().cast()) }, 0);
    }

    /// A kernel's channel from its start to its end.
    pub fn run_channel(&self, context: Handle, op: Handle, channel: u8, gpu_ns: [u64; 2]) {
        let kernel = self.kernel(context, op, channel, gpu_ns[0]);
        self.stop_channel(kernel, gpu_ns[1]);
    }

    pub fn stop_channel(&self, kernel: Handle, gpu_ns: u64) {
        self.state(kernel, 22, gpu_ns);
        self.stop(kernel);
    }

    /// A collective from its start to its end.
    pub fn run(&self, context: Handle, coll: Coll) {
        let op = self.coll(context, coll);
        self.stop(op);
        for channel in 0..coll.channels {
            self.run_channel(context, op, channel, [1000, 3000]);
        }
    }
}

/// 128 bytes, more than any version's.
pub struct Descriptor([u64; 16]);

impl Descriptor {
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        let words = &mut self.0;
        for (place, byte) in bytes.iter().enumerate() {
            let (word, shift) = ((at + place) / 8, (at + place) % 8 * 8);
            words[word] = words[word] & !(0xff << shift) | u64::from(*byte) << shift;
        }
    }

    pub fn put_text(&mut self, at: usize, text: &'static CStr) {
        self.put(at, &text.as_ptr().addr().to_le_bytes());
    }
}
