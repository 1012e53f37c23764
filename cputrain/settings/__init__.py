"""Settings: a module for each, with its values, its decision, its trials and its application.

`cputrain.settings.core.registry` lists the modules of this folder: to add a setting, add a module
with an instance of `Setting` named `SETTING`. Nothing here imports torch when it is loaded.
"""
