"""Whatever a user may hand in is read here: one reader for each format, all within limits.

Every reader gives what it read and where it is (`Place`), or one SpecError with the file, the
line or row, the key, and the smallest fix. Nothing else in RATrain parses a file: a test walks
the sources and holds that.

limits        how large, how deep, how long anything may be
files         bytes and text of a file: a regular one, of bounded size, in UTF-8
place         where a value is: file, line, keys
toml, json    a table and the places of its keys; no key twice
json_lines    one table a line
csv           rows of as many cells as there are columns
values        what no value may be, whatever its format
numbers       whole and real numbers out of words
tensors       the header of a safetensors file, and the index of several
faults        all errors of an input, gathered
"""
