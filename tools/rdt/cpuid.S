# The CPUID instruction of a kernel, with answers of a CPU that has Intel RDT.
#
# patch-kernel calls this code instead of the instruction inside native_cpuid(). On entry r8 points to
# EAX and rdi to ECX; on return EAX, EBX, ECX and EDX hold the answer, as after the instruction. Only
# registers that a function may change are used.
#
# The advertised CPU: L3 with 20 ways, 16 classes and code/data prioritization; L2 with 10 ways, 8
# classes and code/data prioritization; memory bandwidth in steps of 10 % with 8 classes; monitoring
# of occupancy and bandwidth with 128 ids. The levels differ in their number of classes, as on real
# machines.

.code64
    mov     (%r8), %r10d                # the leaf
    mov     (%rdi), %r11d               # and its subleaf
    lea     table(%rip), %rdx
search:
    mov     (%rdx), %eax
    test    %eax, %eax
    jz      original
    cmp     %r10d, %eax
    jne     next
    cmp     %r11d, 4(%rdx)
    jne     next
    mov     8(%rdx), %eax
    mov     12(%rdx), %ebx
    mov     16(%rdx), %ecx
    mov     20(%rdx), %edx
    ret
next:
    add     $24, %rdx
    jmp     search
original:
    mov     %r10d, %eax
    mov     %r11d, %ecx
    cpuid
    cmp     $7, %r10d
    jne     done
    test    %r11d, %r11d
    jnz     done
    or      $0x9000, %ebx               # monitoring (bit 12) and allocation (bit 15) exist
done:
    ret

# Leaf, subleaf, EAX, EBX, ECX, EDX. Counts are one less than the number.
table:
    .long   0x0f, 0, 0, 127, 0, 2       # monitoring: 128 ids, of the L3
    .long   0x0f, 1, 0, 65536, 127, 7   # occupancy in 64 KiB, total and local bandwidth
    .long   0x10, 0, 0, 0xe, 0, 0       # allocation: L3, L2 and memory bandwidth
    .long   0x10, 1, 19, 0xc0000, 4, 15 # L3: two ways are shared with other hardware
    .long   0x10, 2, 9, 0, 4, 7         # L2
    .long   0x10, 3, 89, 0, 4, 7        # memory bandwidth: at most 90 % delay, linear
    .long   0
