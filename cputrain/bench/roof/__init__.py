"""Compare the roof that diagnose measures with matrix products of many sizes and with STREAM."""
