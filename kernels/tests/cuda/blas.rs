//! cuBLASLt's layer: what is missing or refused becomes an error value, a suggestion that is refused is passed over, a
//! wrong element is found, and a handle that work may need is not destroyed.

use std::time::Duration;

use kernels::cuda::{CublasLt, CudaError, Gemm, Kernels, Operand, Output, Shape, Stream};
use kernels::{Libraries, LibraryError};

use crate::fake::{CUBLAS_LT, Fake, LONG, NOT_READY, Switches, build, error, one_less, within};

const SMALL: Shape = Shape { n: 64, operand: Operand::Bf16, output: Output::Bf16 };

/// A fake driver with a fake cuBLASLt beside it.
fn fakes() -> (Fake, Switches) {
    let mut fake = Fake::new();
    let switches = Switches::new(&build(fake.folder(), "libcublasLt.so.13", CUBLAS_LT));
    fake.libraries.cublas_lt = Some(fake.folder().to_owned());
    (fake, switches)
}

fn gemm(fake: &Fake, shape: Shape) -> Result<Gemm, CudaError> {
    let context = fake.context();
    let (stream, kernels) = (Stream::new(&context)?, Kernels::load(&context)?);
    Gemm::new(&CublasLt::open(&fake.libraries, &context)?, &kernels, &stream, shape, within(LONG))
}

#[test]
fn a_missing_library_is_an_error_with_all_its_names() {
    let fake = Fake::new();
    let libraries = Libraries { cublas_lt: Some(fake.folder().to_owned()), ..Libraries::default() };
    let text = error(CublasLt::open(&libraries, &fake.context())).to_string();
    assert!(text.contains("cuBLASLt: can't load libcublasLt.so.13 or libcublasLt.so.12"), "{text}");
    assert!(text.contains(fake.folder().to_str().unwrap()), "{text}");
}

#[test]
fn every_function_that_it_lacks_is_named() {
    let fake = Fake::new();
    let context = fake.context();
    let mut count = 0;
    for (name, source) in one_less(CUBLAS_LT, &["int cu", "size_t cu", "const char *cu"]) {
        let library = build(fake.folder(), &format!("lacks-{name}"), &source);
        let libraries = Libraries { cublas_lt: Some(library.clone()), ..Libraries::default() };
        let error = error(CublasLt::open(&libraries, &context));
        let text = error.to_string();
        assert!(matches!(error, CudaError::Library(LibraryError::Symbol { .. })), "{name}: {text}");
        assert!(text.contains(&name) && text.contains(library.to_str().unwrap()), "{text}");
        count += 1;
    }
    assert_eq!(count, 14);
}

#[test]
fn a_refused_suggestion_is_passed_over() {
    let (fake, switches) = fakes();
    switches.set("fake_refuse", 0b001);
    let gemm = gemm(&fake, SMALL).unwrap();
    // Both others: one product to load it and three that are timed.
    assert_eq!((gemm.choice().index, gemm.choice().of, switches.get("fake_products")), (0, 2, 8));
    drop(gemm);
    assert_eq!(switches.get("fake_live"), 0, "handle and descriptions are destroyed");
    assert_eq!(fake.get("fake_live"), 0, "all memory went back");
}

#[test]
fn without_an_algorithm_the_librarys_words_are_passed_on() {
    let (fake, switches) = fakes();
    switches.set("fake_refuse", 0b111);
    let text = error(gemm(&fake, SMALL)).to_string();
    assert!(
        text.contains("13.1.0") && text.contains("cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED (15)"),
        "{text}"
    );
    switches.set("fake_suggestions", 0);
    let text = error(gemm(&fake, SMALL)).to_string();
    assert!(text.contains("it suggests none"), "{text}");
}

#[test]
fn what_cannot_be_multiplied_is_refused_before_memory_is_taken() {
    let (fake, _switches) = fakes();
    for n in [0, 100, 65_536] {
        let error = error(gemm(&fake, Shape { n, ..SMALL }));
        assert!(matches!(error, CudaError::Size { .. }), "{error}");
    }
    // The fake's compute capability is 8.0.
    let text = error(gemm(&fake, Shape { operand: Operand::E4m3, ..SMALL })).to_string();
    assert!(text.contains("an fp8 product needs compute capability 8.9, this is 8.0"), "{text}");
    assert_eq!(fake.get("fake_live"), 0);
}

#[test]
fn a_hung_product_is_an_error_and_its_handle_stays() {
    let (fake, switches) = fakes();
    let context = fake.context();
    let (stream, kernels) = (Stream::new(&context).unwrap(), Kernels::load(&context).unwrap());
    let lt = CublasLt::open(&fake.libraries, &context).unwrap();
    let gemm = Gemm::new(&lt, &kernels, &stream, SMALL, within(LONG)).unwrap();
    fake.set("fake_answer", NOT_READY);
    let hung = error(gemm.window(&stream, Duration::from_millis(10), within(Duration::from_millis(20))));
    assert!(matches!(hung, CudaError::Hung { .. }), "{hung}");
    drop((gemm, lt));
    assert_eq!(switches.get("fake_live"), 1, "the handle");
    fake.set("fake_answer", 0);
}

#[test]
fn a_right_product_passes_and_a_wrong_bit_does_not() {
    let (fake, switches) = fakes();
    fake.set("fake_capability", 90);
    let context = fake.context();
    let (stream, kernels) = (Stream::new(&context).unwrap(), Kernels::load(&context).unwrap());
    let lt = CublasLt::open(&fake.libraries, &context).unwrap();
    for (operand, output) in [
        (Operand::Bf16, Output::Bf16),
        (Operand::Bf16, Output::F32),
        (Operand::E4m3, Output::Bf16),
        (Operand::E4m3, Output::F32),
    ] {
        let shape = Shape { n: 64, operand, output };
        let mut gemm = Gemm::new(&lt, &kernels, &stream, shape, within(LONG)).unwrap();
        let right = gemm.checksum(&kernels, &stream, within(LONG)).unwrap();
        // More samples than elements: nearly every one is looked at.
        let sampled = gemm.sample(&stream, 40_000, within(LONG)).unwrap();
        assert!(sampled.wrong.is_empty(), "{shape:?} {:?}", sampled.wrong[0]);
        assert_eq!(gemm.checksum(&kernels, &stream, within(LONG)).unwrap(), right);
        // The upper half of a float, or a bf16, in column 10.
        switches.set("fake_flip", 10 * 64 * if output == Output::F32 { 2 } else { 1 } + 6);
        assert_ne!(gemm.checksum(&kernels, &stream, within(LONG)).unwrap(), right);
        let sampled = gemm.sample(&stream, 40_000, within(LONG)).unwrap();
        switches.set("fake_flip", 0);
        let row = if output == Output::F32 { 2 } else { 5 };
        assert!(!sampled.wrong.is_empty(), "{shape:?}");
        assert!(sampled.wrong.iter().all(|one| (one.row, one.column) == (row, 10)), "{:?}", sampled.wrong[0]);
        assert!(sampled.worst.is_nan() || sampled.worst > 0.1, "{}", sampled.worst);
    }
}

/// The example of that name, which cargo builds beside the tests.
fn example(name: &str) -> std::path::PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(2).unwrap().join("examples").join(name)
}

/// The bits of a product of the real library, or of the one that flips a bit of this element, and how many of the
/// first samples are wrong.
fn product(fake: &Fake, element: Option<&str>) -> (u64, usize) {
    let mut libraries = fake.libraries.clone();
    if let Some(element) = element {
        // A name for each, since a library is loaded once.
        let flipping = fake.folder().join(format!("libflipping-{element}.so"));
        std::fs::copy(example("libflipping_cublas_lt.so"), &flipping).unwrap();
        let folder = fake.folder().display();
        let conf = format!("cublas_lt={folder}\ndriver={folder}\nelement={element}\n");
        std::fs::write(fake.folder().join(format!("libflipping-{element}.so.conf")), conf).unwrap();
        libraries.cublas_lt = Some(flipping);
    }
    let context = fake.context();
    let (stream, kernels) = (Stream::new(&context).unwrap(), Kernels::load(&context).unwrap());
    let lt = CublasLt::open(&libraries, &context).unwrap();
    assert_eq!(lt.version(), "13.1.0");
    let mut gemm = Gemm::new(&lt, &kernels, &stream, SMALL, within(LONG)).unwrap();
    let bits = gemm.checksum(&kernels, &stream, within(LONG)).unwrap();
    let again = gemm.checksum(&kernels, &stream, within(LONG)).unwrap();
    assert_eq!(bits, again, "it is wrong in the same way each time");
    (bits, gemm.sample(&stream, 4, within(LONG)).unwrap().wrong.len())
}

#[test]
fn a_bit_that_a_library_flips_is_told_by_the_bits_and_where_it_is_looked_at_by_the_value() {
    let (fake, _switches) = fakes();
    let (right, none) = product(&fake, None);
    let (unseen, still_none) = product(&fake, Some("unseen"));
    let (seen, one) = product(&fake, Some("seen"));
    assert_eq!((none, still_none, one), (0, 0, 1));
    assert!(unseen != right && seen != right && seen != unseen, "{right} {unseen} {seen}");
}

#[test]
fn where_fp8_is_not_offered_that_is_no_fault() {
    let (fake, switches) = fakes();
    let fp8 = Shape { operand: Operand::E4m3, ..SMALL };
    // An older GPU, and a library without an algorithm.
    assert!(error(gemm(&fake, fp8)).is_not_offered());
    fake.set("fake_capability", 90);
    assert!(gemm(&fake, fp8).is_ok());
    switches.set("fake_suggestions", 0);
    assert!(error(gemm(&fake, fp8)).is_not_offered());
    let missing = Libraries { cublas_lt: Some("/nowhere".into()), ..Libraries::default() };
    assert!(!error(CublasLt::open(&missing, &fake.context())).is_not_offered());
}
