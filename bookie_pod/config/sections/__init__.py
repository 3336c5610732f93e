"""The sections of the configuration: frozen dataclasses, one field per key, one docstring per field.

`docs/configuration.md` is generated from these modules. A field's annotation says how its text is read; a
field's docstring gives meaning, unit and danger. No section imports another.
"""
