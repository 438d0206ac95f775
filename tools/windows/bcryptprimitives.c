/*
 * bcryptprimitives.dll for wine releases that lack it (wine 8, Debian 12).
 *
 * Rust's standard library imports ProcessPrng from this DLL to seed its hash maps, so without it no
 * Rust program starts. Forwards to RtlGenRandom (SystemFunction036 of advapi32), which wine has.
 */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG length);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE buffer, SIZE_T length)
{
    while (length > 0) {
        /* RtlGenRandom counts in 32 bits, ProcessPrng in 64. */
        ULONG chunk = length > 0x10000000 ? 0x10000000 : (ULONG)length;
        if (!SystemFunction036(buffer, chunk))
            return FALSE;
        buffer += chunk;
        length -= chunk;
    }
    return TRUE;
}
