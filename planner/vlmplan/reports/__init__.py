"""Reports: an answer as one HTML file that brings everything with it, drawn with the page's charts and styles"""

# pyright: reportUnusedImport=false
from vlmplan.reports.advice import advice_report
from vlmplan.reports.check import check_report
from vlmplan.reports.comparison import comparison_report
from vlmplan.reports.estimate import estimate_report
from vlmplan.reports.launch import launch_report
from vlmplan.reports.recommendation import recommendation_report
from vlmplan.reports.rehearsal import rehearsal_report
