//! The unwinding library of a program that cannot be unwound, in the place of the compiler's: with that come, through
//! what std prints after a panic, readers of debug information that the program does not have.
#![allow(unsafe_code)]

/// Defines it, in the root of a program that is built with `panic = "abort"`: a stack has no frames that could be
/// shown, and who would unwind one ends the process.
#[macro_export]
macro_rules! no_unwinding {
    () => {
        // SAFETY: as the C++ ABI for Itanium declares it ("Level I: Base ABI", and GNU's additions to it); it calls
        // nobody.
        #[unsafe(no_mangle)]
        extern "C" fn _Unwind_Backtrace(
            _: *const ::std::ffi::c_void,
            _: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            const END_OF_STACK: ::std::ffi::c_int = 5;
            END_OF_STACK
        }
        $crate::no_unwinding!(
            _Unwind_DeleteException
            _Unwind_FindEnclosingFunction
            _Unwind_ForcedUnwind
            _Unwind_GetCFA
            _Unwind_GetDataRelBase
            _Unwind_GetGR
            _Unwind_GetIP
            _Unwind_GetIPInfo
            _Unwind_GetLanguageSpecificData
            _Unwind_GetRegionStart
            _Unwind_GetTextRelBase
            _Unwind_RaiseException
            _Unwind_Resume
            _Unwind_Resume_or_Rethrow
            _Unwind_SetGR
            _Unwind_SetIP
        );
    };
    ($($function:ident)*) => {$(
        // SAFETY: it does not return, so it does not matter what it is given.
        #[unsafe(no_mangle)]
        extern "C" fn $function() -> ! {
            ::std::process::abort()
        }
    )*};
}
