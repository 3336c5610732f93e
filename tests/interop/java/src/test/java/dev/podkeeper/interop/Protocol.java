package dev.podkeeper.interop;

/** The two protocols that the stock client speaks. */
enum Protocol {
    V2,
    V3
}
